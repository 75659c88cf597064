"""The parts decoders are made of, as builder functions over GGUF tensor names.

Each appends its ops for block `i` and returns the buffer with its result. Tensor names are the file's own
(`blk.0.attn_q.weight`), so there is no mapping to learn.
"""

from __future__ import annotations

from dataclasses import dataclass

from phobos.program.builder import ProgramBuilder
from phobos.program.steps import Activation, Attention, Buffer, RopeStyle, RotateStore


@dataclass(frozen=True)
class Heads:
    """The shape of an attention: head counts and dimensions, and how scores are scaled and capped."""

    n_heads: int
    n_kv_heads: int
    k_dim: int
    v_dim: int
    scale: float
    soft_cap: float = 0.0


def attention(
    p: ProgramBuilder,
    i: int,
    x: Buffer,
    heads: Heads,
    table: Buffer | None,
    *,
    style: RopeStyle,
    window: int = 0,
    eps: float = 0.0,
) -> Buffer:
    """Queries, keys and values of `x`, rotated and cached, attended: [n_heads * v_dim] before the output matrix.

    Biases and per-head norms are used where the file has them.
    """
    prefix = f"blk.{i}.attn_"

    def project(part: str, width: int) -> Buffer:
        bias = f"{prefix}{part}.bias"
        return p.matmul(part, x, f"{prefix}{part}.weight", width, bias=bias if p.has(bias) else None)

    q = project("q", heads.n_heads * heads.k_dim)
    k = project("k", heads.n_kv_heads * heads.k_dim)
    v = project("v", heads.n_kv_heads * heads.v_dim)
    layer = p.cache_layer(heads.n_kv_heads, heads.k_dim, heads.v_dim, window)
    q_norm = p.optional(f"{prefix}q_norm.weight", heads.k_dim)
    k_norm = p.optional(f"{prefix}k_norm.weight", heads.k_dim)
    p.add(RotateStore(q, k, v, table, layer, heads.n_heads, style, q_norm, k_norm, eps))
    out = p.buffer("attended", heads.n_heads * heads.v_dim)
    p.add(Attention(out, q, layer, heads.n_heads, heads.scale, heads.soft_cap))
    return out


def attention_out(p: ProgramBuilder, i: int, attended: Buffer, out: str, width: int, residual: Buffer | None) -> Buffer:
    """The attention's output matrix."""
    bias = f"blk.{i}.attn_output.bias"
    return p.matmul(
        out, attended, f"blk.{i}.attn_output.weight", width, bias=bias if p.has(bias) else None, residual=residual
    )


def gated_mlp(
    p: ProgramBuilder,
    i: int,
    x: Buffer,
    n_ff: int,
    activation: Activation,
    *,
    out: str,
    residual: Buffer | None,
) -> Buffer:
    """down(activation(gate(x)) * up(x)), the dense feed-forward block."""
    prefix = f"blk.{i}.ffn_"
    gate = p.matmul("gate", x, f"{prefix}gate.weight", n_ff)
    up = p.matmul("up", x, f"{prefix}up.weight", n_ff)
    hidden = p.glu("hidden", gate, up, activation)
    return p.matmul(out, hidden, f"{prefix}down.weight", x.width, residual=residual)


def output_weight(p: ProgramBuilder) -> str:
    """The output matrix: its own, or the embedding's where the file ties them."""
    return "output.weight" if p.has("output.weight") else "token_embd.weight"
