"""GLM-4.5 and later mixtures: leading dense blocks, then experts chosen by sigmoid with a bias, and a shared expert.
Draft layers at the end of the file (`nextn_predict_layers`) are left out. Source: GLM-4.5 Team 2025."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import mixture, read_mixture
from phobos.program.shape import count_blocks, read_shape
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    experts = read_mixture(gguf, gating="sigmoid", is_normalized=False)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(count_blocks(gguf, c.n_layers)):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        attended = attention(p, i, h, c.heads, table, style="neox", eps=c.eps)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.post_attention_norm.weight", c.eps)
        if experts.is_dense(i):
            x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
        else:
            x = mixture(p, i, h, experts, out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
