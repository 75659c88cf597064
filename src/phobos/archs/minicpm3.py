"""MiniCPM3: latent attention (queries, and keys with values, each through a narrow layer; one rotated part of the key
shared by all heads), unfolded into plain heads; MiniCPM's scales. Source: Hu et al. 2024; DeepSeek-AI 2024 (V2)."""

from __future__ import annotations

from phobos.archs.minicpm import BASE_WIDTH, DEPTH_SCALE, EMBEDDING_SCALE
from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads, attend, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.latent import Latent, project_plain
from phobos.program.shape import read_shape
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    n_heads, k_dim, v_dim, n_rot = c.heads.n_heads, c.heads.k_dim, c.heads.v_dim, 2 * len(c.rope.frequencies)
    q_rank, kv_rank = (gguf.get_int(f"minicpm3.attention.{name}_lora_rank") for name in ("q", "kv"))
    latent = Latent(n_heads, q_rank, kv_rank, k_dim, v_dim, n_rot, k_dim**-0.5, "neox")
    heads = Heads(n_heads, n_heads, k_dim, v_dim, latent.scale)
    scale = DEPTH_SCALE / c.n_layers**0.5
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd, scale=EMBEDDING_SCALE)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        q, k, v = project_plain(p, i, h, latent, c.eps)
        attended = attend(p, i, q, k, v, heads, table, style="neox")
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x, scale=scale)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x, scale=scale)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab, scale=BASE_WIDTH / c.n_embd)
    return p.finish(logits, c.n_ctx)
