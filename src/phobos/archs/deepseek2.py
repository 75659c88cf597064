"""DeepSeek V2, V3 and R1, Kimi K2 and GLM-4.7-Flash: latent attention and experts.

Files with `attn_k_b` keep the latent itself as the only key and value of a position: queries are brought into its space
and results out of it, head by head. Older files have `attn_kv_b` and plain heads.
Source: DeepSeek-AI 2024 (V2, V3).
"""

from __future__ import annotations

import math

from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads, attend, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import mixture, read_mixture
from phobos.program.latent import Latent, attend_latent, project_plain
from phobos.program.shape import read_rotated, read_shape
from phobos.program.steps import Program


def read_latent(gguf: GGUF) -> Latent:
    """Shapes of the heads, and the scale of scores: YaRN's growth is in it instead of in the rotation."""
    a = gguf.architecture
    k_dim = gguf.get_int(f"{a}.attention.key_length_mla", gguf.get_int(f"{a}.attention.key_length"))
    factor = gguf.get_float(f"{a}.rope.scaling.factor", 1.0)
    multiplier = gguf.get_float(f"{a}.rope.scaling.yarn_log_multiplier", 0.0)
    growth = 1 + multiplier * math.log(factor) if factor > 1 else 1.0
    return Latent(
        n_heads=gguf.get_int(f"{a}.attention.head_count"),
        q_rank=gguf.get_int(f"{a}.attention.q_lora_rank", 0),
        kv_rank=gguf.get_int(f"{a}.attention.kv_lora_rank"),
        k_dim=k_dim,
        v_dim=gguf.get_int(f"{a}.attention.value_length_mla", gguf.get_int(f"{a}.attention.value_length")),
        n_rot=read_rotated(gguf, k_dim),
        scale=growth * growth / math.sqrt(k_dim),
        style="normal",
    )


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c, m = ProgramBuilder(gguf), read_shape(gguf), read_latent(gguf)
    experts = read_mixture(gguf, is_normalized=False)
    heads = Heads(m.n_heads, m.n_heads, m.k_dim, m.v_dim, m.scale)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        if p.has(f"blk.{i}.attn_k_b.weight"):
            attended = attend_latent(p, i, h, m, table, c.eps)
        else:
            q, k, v = project_plain(p, i, h, m, c.eps)
            attended = attend(p, i, q, k, v, heads, table, style=m.style, has_head_norms=False)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        if experts.is_dense(i):
            x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
        else:
            x = mixture(p, i, h, experts, out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
