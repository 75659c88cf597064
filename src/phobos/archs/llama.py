"""The Llama family: pre-norm, rotary attention, gated SiLU. Also Mistral, SmolLM2, MiniCPM5 and others stored as
`llama`, ERNIE 4.5 and, with experts, Mixtral. Source: Touvron et al. 2023; layout as llama.cpp's converter writes it
(query and key rows already permuted for the "normal" rotation)."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import Mixture, mixture, read_mixture
from phobos.program.shape import read_shape
from phobos.program.steps import Program, RopeStyle


def build_file(gguf: GGUF) -> Program:
    """The forward pass, with experts where the file counts any."""
    a = gguf.architecture
    n_ff = gguf.get_int(f"{a}.feed_forward_length", 0)
    has_experts = gguf.get_int(f"{a}.expert_count", 0) > 0
    return build(gguf, experts=read_mixture(gguf, n_ff=n_ff) if has_experts else None)


def build(gguf: GGUF, style: RopeStyle = "normal", experts: Mixture | None = None) -> Program:
    """The forward pass. `experts` replace the feed-forward of blocks that have a router."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        attended = attention(p, i, h, c.heads, table, style=style, eps=c.eps)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        if experts is not None and p.has(f"blk.{i}.ffn_gate_inp.weight"):
            x = mixture(p, i, h, experts, out="x", residual=x)
        else:
            x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
