"""Ministral 3: the Llama form with queries tempered far into a context. Source: Mistral AI 2025; the tempering is
Llama 4's (Meta 2025)."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attend, attention_out, gated_mlp, output_weight, project_qkv
from phobos.program.builder import ProgramBuilder
from phobos.program.shape import read_shape
from phobos.program.steps import Program, Temper


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    slope = gguf.get_float("mistral3.attention.temperature_scale", 0.0)
    span = gguf.get_int("mistral3.rope.scaling.original_context_length", c.n_ctx)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        q, k, v = project_qkv(p, i, h, c.heads)
        if slope > 0:  # rotation keeps lengths, so it may come after
            p.add(Temper(q, slope, span))
        attended = attend(p, i, q, k, v, c.heads, table, style="normal", has_head_norms=False)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
