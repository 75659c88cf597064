"""Granite, with and without experts and blocks of Mamba 2, and MiniCPM: the Llama form with scaled embeddings,
residuals and logits. Source: IBM 2024 and 2025 (Granite 3 and 4); Hu et al. 2024 (MiniCPM)."""

from __future__ import annotations

from dataclasses import dataclass

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import mixture, read_mixture
from phobos.program.recurrent import mamba2, read_recurrence
from phobos.program.shape import read_shape
from phobos.program.steps import Program


@dataclass(frozen=True)
class Scales:
    """What embeddings and each half's output are multiplied by, and logits divided by."""

    embedding: float
    residual: float
    logits: float


def read_scales(gguf: GGUF, defaults: Scales) -> Scales:
    """The file's scales; a key that is absent has its default, as has one that is 0."""
    a = gguf.architecture
    return Scales(
        gguf.get_float(f"{a}.embedding_scale", 0.0) or defaults.embedding,
        gguf.get_float(f"{a}.residual_scale", 0.0) or defaults.residual,
        gguf.get_float(f"{a}.logit_scale", 0.0) or defaults.logits,
    )


def build(gguf: GGUF, defaults: Scales = Scales(1.0, 1.0, 1.0)) -> Program:
    """The forward pass. Files of Granite without positions say `rope.scaling.finetuned = false`."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    scales = read_scales(gguf, defaults)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd, scale=scales.embedding)
    has_rope = gguf.get_bool(f"{gguf.architecture}.rope.scaling.finetuned", True)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude) if has_rope else None
    has_experts = gguf.get_int(f"{gguf.architecture}.expert_count", 0) > 0
    experts = read_mixture(gguf, n_ff=c.n_ff) if has_experts else None
    recurrence = read_recurrence(gguf) if gguf.architecture == "granitehybrid" else None
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        if recurrence is not None and p.has(f"blk.{i}.ssm_in.weight"):
            x = mamba2(p, i, h, recurrence, c.eps, residual=x, scale=scales.residual)
        else:
            attended = attention(p, i, h, c.heads, table, style="normal", eps=c.eps)
            x = attention_out(p, i, attended, "x", c.n_embd, residual=x, scale=scales.residual)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        if experts is not None:
            x = mixture(p, i, h, experts, out="x", residual=x, scale=scales.residual)
        else:
            x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x, scale=scales.residual)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab, scale=1 / scales.logits)
    return p.finish(logits, c.n_ctx)
