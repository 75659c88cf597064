"""GLM-4 and GLM-Z1 (0414): norms before and after each half, half of each head rotated, gate and up in one matrix.
Source: GLM Team 2024."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.shape import read_shape
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        attended = attention(p, i, h, c.heads, table, style="normal", eps=c.eps)
        y = attention_out(p, i, attended, "y", c.n_embd, residual=None)
        x = p.norm("x", y, f"blk.{i}.post_attention_norm.weight", c.eps, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        y = gated_mlp(p, i, h, c.n_ff, "silu", out="y", residual=None)
        x = p.norm("x", y, f"blk.{i}.post_ffw_norm.weight", c.eps, residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
