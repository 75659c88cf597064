"""Hunyuan (dense): the Llama form, each head's queries and keys normed after they are rotated. Source: Tencent 2025."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attend, attention_out, gated_mlp, output_weight, project_qkv
from phobos.program.builder import ProgramBuilder
from phobos.program.shape import read_shape
from phobos.program.steps import Program, RotateStore


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        q, k, v = project_qkv(p, i, h, c.heads)
        layer = p.cache_layer(c.heads.n_kv_heads, c.heads.k_dim, c.heads.v_dim)
        for part, n_heads in ((q, c.heads.n_heads), (k, c.heads.n_kv_heads)):
            p.add(RotateStore(part, None, None, table, layer, n_heads, "neox"))
        attended = attend(p, i, q, k, v, c.heads, None, style="neox", eps=c.eps, layer=layer)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
