"""Gemma 1: the Llama form with GELU gates and embeddings scaled by the root of their width (the converter has added
the one to norm weights). Source: Gemma Team 2024."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.shape import read_shape
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd, scale=c.n_embd**0.5)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        attended = attention(p, i, h, c.heads, table, style="neox")
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        x = gated_mlp(p, i, h, c.n_ff, "gelu_tanh", out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
