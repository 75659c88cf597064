"""Latent attention as builder functions: keys and values come from one narrow vector a position.

The part of a key that is rotated is shared by all heads. It lies last in the file and is put first here, where rotation
expects it; scores do not change where queries and keys move alike. Source: DeepSeek-AI 2024 (V2).
"""

from __future__ import annotations

from dataclasses import dataclass

from phobos.program.builder import ProgramBuilder
from phobos.program.steps import Attention, Buffer, HeadMatMul, RopeStyle, RotateStore, Splice


@dataclass(frozen=True)
class Latent:
    """Head counts, ranks and dimensions. `q_rank` is 0 where queries come straight from the input; `n_rot` of the
    `k_dim` values of a head are rotated."""

    n_heads: int
    q_rank: int
    kv_rank: int
    k_dim: int
    v_dim: int
    n_rot: int
    scale: float
    style: RopeStyle


def _queries(p: ProgramBuilder, i: int, h: Buffer, m: Latent, eps: float) -> Buffer:
    """Queries as the file has them: the plain part of each head, then the one to be rotated."""
    width = m.n_heads * m.k_dim
    if not p.has(f"blk.{i}.attn_q_a.weight"):
        return p.matmul("q_file", h, f"blk.{i}.attn_q.weight", width)
    low = p.matmul("q_low", h, f"blk.{i}.attn_q_a.weight", m.q_rank)
    low = p.norm("q_low_normed", low, f"blk.{i}.attn_q_a_norm.weight", eps)
    return p.matmul("q_file", low, f"blk.{i}.attn_q_b.weight", width)


def _latent(p: ProgramBuilder, i: int, h: Buffer, m: Latent, eps: float) -> tuple[Buffer, Buffer]:
    """The normed latent, and the buffer whose last `n_rot` values are the shared part of the key."""
    low = p.matmul("kv_low", h, f"blk.{i}.attn_kv_a_mqa.weight", m.kv_rank + m.n_rot)
    latent = p.buffer("latent", m.kv_rank)
    p.add(Splice(latent, low, 1, m.kv_rank, 0, 0, 0, 0))
    return p.norm("latent_normed", latent, f"blk.{i}.attn_kv_a_norm.weight", eps), low


def project_plain(p: ProgramBuilder, i: int, h: Buffer, m: Latent, eps: float) -> tuple[Buffer, Buffer, Buffer]:
    """Queries, keys and values of all heads, unfolded."""
    n, n_plain = m.n_heads, m.k_dim - m.n_rot
    wide = _queries(p, i, h, m, eps)
    q, k, v = p.buffer("q", wide.width), p.buffer("k", wide.width), p.buffer("v", n * m.v_dim)
    p.add(Splice(q, wide, n, m.n_rot, n_plain, m.k_dim, 0, m.k_dim))
    p.add(Splice(q, wide, n, n_plain, 0, m.k_dim, m.n_rot, m.k_dim))
    latent, low = _latent(p, i, h, m, eps)
    stride = n_plain + m.v_dim
    both = p.matmul("kv_file", latent, f"blk.{i}.attn_kv_b.weight", n * stride)
    p.add(Splice(k, low, n, m.n_rot, m.kv_rank, 0, 0, m.k_dim))
    p.add(Splice(k, both, n, n_plain, 0, stride, m.n_rot, m.k_dim))
    p.add(Splice(v, both, n, m.v_dim, n_plain, stride, 0, m.v_dim))
    return q, k, v


def attend_latent(p: ProgramBuilder, i: int, h: Buffer, m: Latent, table: Buffer | None, eps: float) -> Buffer:
    """Attention over latents as the one key and value of all heads: [n_heads * v_dim] before the output matrix."""
    n, n_plain, wide_dim = m.n_heads, m.k_dim - m.n_rot, m.n_rot + m.kv_rank
    wide = _queries(p, i, h, m, eps)
    plain, absorbed = p.buffer("q_plain", n * n_plain), p.buffer("q_absorbed", n * m.kv_rank)
    p.add(Splice(plain, wide, n, n_plain, 0, m.k_dim, 0, n_plain))
    p.add(HeadMatMul(absorbed, plain, p.weight(f"blk.{i}.attn_k_b.weight", n, m.kv_rank, n_plain), n))
    q = p.buffer("q", n * wide_dim)
    p.add(Splice(q, wide, n, m.n_rot, n_plain, m.k_dim, 0, wide_dim))
    p.add(Splice(q, absorbed, n, m.kv_rank, 0, m.kv_rank, m.n_rot, wide_dim))
    latent, low = _latent(p, i, h, m, eps)
    k = p.buffer("k", wide_dim)
    p.add(Splice(k, low, 1, m.n_rot, m.kv_rank, 0, 0, 0))
    p.add(Splice(k, latent, 1, m.kv_rank, 0, 0, m.n_rot, 0))
    layer = p.cache_layer(1, wide_dim, m.kv_rank)
    p.add(RotateStore(q, k, latent, table, layer, n, m.style))
    attended = p.buffer("attended_latent", n * m.kv_rank)
    p.add(Attention(attended, q, layer, n, m.scale))
    out = p.buffer("attended", n * m.v_dim)
    p.add(HeadMatMul(out, attended, p.weight(f"blk.{i}.attn_v_b.weight", n, m.v_dim, m.kv_rank), n))
    return out
