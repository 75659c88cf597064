"""Recurrent blocks as builder functions over GGUF tensor names, and the attention gated by its own input that stands
between them. Sources: Yang et al. 2024 (gated delta net); Dao and Gu 2024 (Mamba 2)."""

from __future__ import annotations

from dataclasses import dataclass

from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads, attend, bias_of
from phobos.program.builder import ProgramBuilder
from phobos.program.steps import Buffer, GatedDelta, HeadNorm, RopeStyle, SelectiveScan, ShortConv, Splice

CHANNEL_UNIT = 16  # convolved channels, and the dimension of a key
COLUMN_UNIT = 32  # columns of a delta state


@dataclass(frozen=True)
class Recurrence:
    """The keys `ssm.*`: `width` of the convolution, `n_inner` values in `n_heads` heads, `n_groups` of keys (delta net)
    or of b and c (Mamba), each `state_dim` long."""

    width: int
    n_inner: int
    n_heads: int
    n_groups: int
    state_dim: int

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return self.n_inner // self.n_heads


def read_recurrence(gguf: GGUF) -> Recurrence:
    """The file's keys, checked: heads are whole and as wide as the kernels take them."""
    a = gguf.architecture
    r = Recurrence(
        width=gguf.get_int(f"{a}.ssm.conv_kernel"),
        n_inner=gguf.get_int(f"{a}.ssm.inner_size"),
        n_heads=gguf.get_int(f"{a}.ssm.time_step_rank"),
        n_groups=gguf.get_int(f"{a}.ssm.group_count"),
        state_dim=gguf.get_int(f"{a}.ssm.state_size"),
    )
    counts_fit = r.n_heads > 0 and r.n_groups > 0 and r.n_inner % r.n_heads == 0 and r.n_heads % r.n_groups == 0
    if not counts_fit or r.head_dim % CHANNEL_UNIT or r.state_dim % CHANNEL_UNIT or r.width < 2:
        raise UnsupportedModelError(
            f"this {a} file has {r.n_heads} heads in {r.n_inner} values, {r.n_groups} groups and states of "
            f"{r.state_dim}: heads must divide the values and groups the heads, and both widths be whole "
            f"multiples of {CHANNEL_UNIT}"
        )
    return r


def short_conv(
    p: ProgramBuilder, out: str, x: Buffer, tensor: str, width: int, *, has_activation: bool = True
) -> Buffer:
    """The causal convolution of `tensor`.weight, with its bias where there is one, and SiLU."""
    if x.width % CHANNEL_UNIT:
        raise UnsupportedModelError(f"tensor {tensor}.weight has {x.width} channels, no multiple of {CHANNEL_UNIT}")
    buffer = p.buffer(out, x.width)
    weight = p.flat_weight(f"{tensor}.weight", x.width, width)
    bias = p.flat_weight(f"{tensor}.bias", x.width) if p.has(f"{tensor}.bias") else None
    state = p.state_layer((width - 1) * x.width)
    p.add(ShortConv(buffer, x, weight, width, state, bias, "silu" if has_activation else None))
    return buffer


def gated_delta(
    p: ProgramBuilder,
    i: int,
    parts: tuple[Buffer, Buffer, Buffer],
    starts: tuple[int, int, int],
    decay: Buffer,
    beta: Buffer,
    shape: Recurrence,
    eps: float,
    *,
    is_tiled: bool = False,
) -> Buffer:
    """The delta rule of block `i` over convolved queries, keys and values, and the norm of its heads."""
    n, k_dim, v_dim = shape.n_heads, shape.state_dim, shape.head_dim
    if v_dim % COLUMN_UNIT:
        raise UnsupportedModelError(f"heads of {v_dim} values are no whole multiple of {COLUMN_UNIT}")
    out = p.buffer("delta_out", n * v_dim)
    p.add(
        GatedDelta(
            out, *parts, decay, beta, p.state_layer(n * k_dim * v_dim), p.flat_weight(f"blk.{i}.ssm_a", n),
            p.flat_weight(f"blk.{i}.ssm_dt.bias", decay.width), n, shape.n_groups, k_dim, v_dim, k_dim**-0.5, eps,
            starts, is_tiled,
        )
    )  # fmt: skip
    normed = p.buffer("delta_normed", n * v_dim)
    p.add(HeadNorm(normed, out, n, p.weight(f"blk.{i}.ssm_norm.weight", v_dim), eps))
    return normed


def mamba2(
    p: ProgramBuilder, i: int, h: Buffer, m: Recurrence, eps: float, *, residual: Buffer, scale: float = 1.0
) -> Buffer:
    """Block `i` of Mamba 2: in, convolution, scan, gate, norm of groups, out."""
    n, inner, shared = m.n_heads, m.n_inner, m.n_groups * m.state_dim
    mixed = inner + 2 * shared
    total = inner + mixed + n
    weight = f"blk.{i}.ssm_in.weight"
    z = p.matmul("scan_z", h, weight, inner, part=(0, total))
    x = p.matmul("scan_in", h, weight, mixed, part=(inner, total))
    dt = p.matmul("scan_dt", h, weight, n, part=(inner + mixed, total))
    x = short_conv(p, "scan_mixed", x, f"blk.{i}.ssm_conv1d", m.width)
    y = p.buffer("scan_out", inner)
    rate, skip, bias = (p.flat_weight(f"blk.{i}.{name}", n) for name in ("ssm_a", "ssm_d", "ssm_dt.bias"))
    state = p.state_layer(n * m.head_dim * m.state_dim)
    p.add(SelectiveScan(y, x, dt, state, rate, bias, skip, n, m.head_dim, m.n_groups, m.state_dim))
    y = p.glu("scan_gated", z, y, "silu")
    if p.has(f"blk.{i}.ssm_norm.weight"):
        normed = p.buffer("scan_normed", inner)
        norm = p.flat_weight(f"blk.{i}.ssm_norm.weight", m.n_groups, inner // m.n_groups)
        p.add(HeadNorm(normed, y, m.n_groups, norm, eps, has_own_weights=True))
        y = normed
    return p.matmul("x", y, f"blk.{i}.ssm_out.weight", residual.width, residual=residual, scale=scale)


def gated_attention(
    p: ProgramBuilder, i: int, h: Buffer, heads: Heads, table: Buffer, *, style: RopeStyle, eps: float
) -> Buffer:
    """Attention whose result is multiplied by the sigmoid of a gate; each head's rows of the query matrix are its query
    and then its gate."""
    n, dim = heads.n_heads, heads.k_dim
    both = p.matmul("q_both", h, f"blk.{i}.attn_q.weight", 2 * n * dim, bias=bias_of(p, f"blk.{i}.attn_q"))
    q, gate = p.buffer("q", n * dim), p.buffer("q_gate", n * dim)
    p.add(Splice(q, both, n, dim, 0, 2 * dim, 0, dim))
    p.add(Splice(gate, both, n, dim, dim, 2 * dim, 0, dim))
    k, v = (
        p.matmul(
            name, h, f"blk.{i}.attn_{name}.weight", heads.n_kv_heads * dim, bias=bias_of(p, f"blk.{i}.attn_{name}")
        )
        for name in ("k", "v")
    )
    attended = attend(p, i, q, k, v, heads, table, style=style, eps=eps)
    return p.glu("attended_gated", gate, attended, "sigmoid")
