"""OLMoE: the Llama form with norms on the whole width of queries and keys, and experts whose weights are not
normalized. Source: Muennighoff et al. 2024."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attend, attention_out, output_weight, project_qkv
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import mixture, read_mixture
from phobos.program.shape import read_shape
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    experts = read_mixture(gguf, is_normalized=False, n_ff=c.n_ff)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        q, k, v = project_qkv(p, i, h, c.heads)
        q = p.norm("q_normed", q, f"blk.{i}.attn_q_norm.weight", c.eps)
        k = p.norm("k_normed", k, f"blk.{i}.attn_k_norm.weight", c.eps)
        attended = attend(p, i, q, k, v, c.heads, table, style="neox", has_head_norms=False)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        x = mixture(p, i, h, experts, out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
