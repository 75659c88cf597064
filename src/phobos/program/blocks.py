"""The parts decoders are made of, as builder functions over GGUF tensor names.

Each appends its ops for block `i` and returns the buffer with its result. Tensor names are the file's own
(`blk.0.attn_q.weight`), so there is no mapping to learn. Biases, per-head norms and fused matrices are used where the
file has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from phobos.program.builder import ProgramBuilder
from phobos.program.steps import Activation, Attention, Buffer, CacheLayer, RopeStyle, RotateStore


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
    sinks: str | None = None,
    tag: str = "",
) -> Buffer:
    """Queries, keys and values of `x`, rotated and cached, attended: [n_heads * v_dim] before the output matrix. `tag`
    is of the buffers' names, where blocks differ in width."""
    q, k, v = project_qkv(p, i, x, heads, tag)
    return attend(p, i, q, k, v, heads, table, style=style, window=window, eps=eps, sinks=sinks, tag=tag)


def project_qkv(p: ProgramBuilder, i: int, x: Buffer, heads: Heads, tag: str = "") -> tuple[Buffer, Buffer, Buffer]:
    """Queries [n_heads * k_dim], keys [n_kv_heads * k_dim] and values, by three matrices or one."""
    prefix = f"blk.{i}.attn_"
    q_width, k_width, v_width = (
        heads.n_heads * heads.k_dim,
        heads.n_kv_heads * heads.k_dim,
        heads.n_kv_heads * heads.v_dim,
    )
    fused = p.has(f"{prefix}qkv.weight")
    total = q_width + k_width + v_width

    def project(name: str, width: int, first_row: int) -> Buffer:
        tensor = f"{prefix}{'qkv' if fused else name}"
        part = (first_row, total) if fused else None
        return p.matmul(name + tag, x, f"{tensor}.weight", width, bias=bias_of(p, tensor), part=part)

    return project("q", q_width, 0), project("k", k_width, q_width), project("v", v_width, q_width + k_width)


def bias_of(p: ProgramBuilder, tensor: str) -> str | None:
    """The name of a tensor's bias, where the file has one."""
    return f"{tensor}.bias" if p.has(f"{tensor}.bias") else None


def attend(
    p: ProgramBuilder,
    i: int,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    heads: Heads,
    table: Buffer | None,
    *,
    style: RopeStyle,
    window: int = 0,
    eps: float = 0.0,
    has_head_norms: bool = True,
    sinks: str | None = None,
    layer: CacheLayer | None = None,
    tag: str = "",
) -> Buffer:
    """Ready-made queries, keys and values, normed by head where the file says so, rotated, cached (in a layer of their
    own where none is given) and attended."""
    prefix = f"blk.{i}.attn_"
    layer = layer or p.cache_layer(heads.n_kv_heads, heads.k_dim, heads.v_dim, window)
    q_norm = p.optional(f"{prefix}q_norm.weight", heads.k_dim) if has_head_norms else None
    k_norm = p.optional(f"{prefix}k_norm.weight", heads.k_dim) if has_head_norms else None
    p.add(RotateStore(q, k, v, table, layer, heads.n_heads, style, q_norm, k_norm, eps))
    out = p.buffer(f"attended{tag}", heads.n_heads * heads.v_dim)
    p.add(Attention(out, q, layer, heads.n_heads, heads.scale, heads.soft_cap, sinks))
    return out


def attention_out(
    p: ProgramBuilder, i: int, attended: Buffer, out: str, width: int, residual: Buffer | None, *, scale: float = 1.0
) -> Buffer:
    """The attention's output matrix."""
    tensor = f"blk.{i}.attn_output"
    return p.matmul(out, attended, f"{tensor}.weight", width, bias=bias_of(p, tensor), residual=residual, scale=scale)


def gated_mlp(
    p: ProgramBuilder,
    i: int,
    x: Buffer,
    n_ff: int,
    activation: Activation,
    *,
    out: str,
    residual: Buffer | None,
    scale: float = 1.0,
    suffix: str = "",
    width_tag: str = "",
) -> Buffer:
    """down(activation(gate(x)) * up(x)), the dense feed-forward block. Without a gate matrix its rows are the first
    half of up's. `suffix`: of the tensors' names, "_shexp" for shared experts; `width_tag`: of the buffers',
    where blocks differ in width."""
    tag = suffix + width_tag
    gate_name, up_name, down_name = (f"blk.{i}.ffn_{name}{suffix}" for name in ("gate", "up", "down"))
    if p.has(f"{gate_name}.weight"):
        gate = p.matmul(f"gate{tag}", x, f"{gate_name}.weight", n_ff, bias=bias_of(p, gate_name))
        up = p.matmul(f"up{tag}", x, f"{up_name}.weight", n_ff, bias=bias_of(p, up_name))
    else:
        bias = bias_of(p, up_name)
        gate = p.matmul(f"gate{tag}", x, f"{up_name}.weight", n_ff, bias=bias, part=(0, 2 * n_ff))
        up = p.matmul(f"up{tag}", x, f"{up_name}.weight", n_ff, bias=bias, part=(n_ff, 2 * n_ff))
    hidden = p.glu(f"hidden{tag}", gate, up, activation)
    return p.matmul(
        out, hidden, f"{down_name}.weight", x.width, bias=bias_of(p, down_name), residual=residual, scale=scale
    )


def plain_mlp(
    p: ProgramBuilder, i: int, x: Buffer, n_ff: int, activation: Activation, *, out: str, residual: Buffer | None
) -> Buffer:
    """down(activation(up(x)))."""
    up_name, down_name = f"blk.{i}.ffn_up", f"blk.{i}.ffn_down"
    up = p.matmul("up", x, f"{up_name}.weight", n_ff, bias=bias_of(p, up_name))
    hidden = p.activate("hidden", up, activation)
    return p.matmul(out, hidden, f"{down_name}.weight", x.width, bias=bias_of(p, down_name), residual=residual)


def output_weight(p: ProgramBuilder) -> str:
    """The output matrix: its own, or the embedding's where the file ties them."""
    return "output.weight" if p.has("output.weight") else "token_embd.weight"
