"""A mixture of experts as a builder function over GGUF tensor names, and its hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass

from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.blocks import bias_of, gated_mlp
from phobos.program.builder import ROW_UNIT, ProgramBuilder
from phobos.program.steps import AddGated, Buffer, ExpertActivation, Experts, Gating, Route

GATINGS: dict[int, Gating] = {1: "softmax", 2: "sigmoid", 3: "chosen"}  # as `expert_gating_func` numbers them


@dataclass(frozen=True)
class Mixture:
    """How a block's experts are chosen and how wide they are; see `Route`. `shared_ff` is 0 without shared experts."""

    n_experts: int
    n_used: int
    n_ff: int
    shared_ff: int
    n_dense: int
    gating: Gating
    is_normalized: bool
    scale: float
    n_groups: int
    n_groups_used: int

    def is_dense(self, i: int) -> bool:
        """Whether block `i` is one of the leading ones without experts."""
        return i < self.n_dense


def read_mixture(
    gguf: GGUF, *, gating: Gating = "softmax", is_normalized: bool = True, n_ff: int | None = None
) -> Mixture:
    """The file's keys; `gating` and `is_normalized` where it has none, `n_ff` where it names no width of an expert."""
    a = gguf.architecture
    number = gguf.get_int(f"{a}.expert_gating_func", 0)
    if number and number not in GATINGS:
        raise UnsupportedModelError(f"the file chooses experts by function {number}; {sorted(GATINGS)} are supported")
    width = gguf.get_int(f"{a}.expert_feed_forward_length", n_ff or 0)
    return Mixture(
        n_experts=gguf.get_int(f"{a}.expert_count"),
        n_used=gguf.get_int(f"{a}.expert_used_count"),
        n_ff=width,
        shared_ff=gguf.get_int(f"{a}.expert_shared_feed_forward_length", 0)
        or width * gguf.get_int(f"{a}.expert_shared_count", 0),
        n_dense=gguf.get_int(f"{a}.leading_dense_block_count", 0),
        gating=GATINGS.get(number, gating),
        is_normalized=gguf.get_bool(f"{a}.expert_weights_norm", is_normalized),
        scale=gguf.get_float(f"{a}.expert_weights_scale", 0.0) or 1.0,
        n_groups=gguf.get_int(f"{a}.expert_group_count", 0) or 1,
        n_groups_used=gguf.get_int(f"{a}.expert_group_used_count", 0) or 1,
    )


def mixture(
    p: ProgramBuilder, i: int, x: Buffer, m: Mixture, *, out: str, residual: Buffer | None, scale: float = 1.0
) -> Buffer:
    """Routed experts of block `i`, and the shared ones where the file has them; `scale` as in `gated_mlp`."""
    y = routed(p, i, x, m, "silu", out=out, residual=residual, scale=scale)
    if m.shared_ff and p.has(f"blk.{i}.ffn_down_shexp.weight"):
        gate_name = f"blk.{i}.ffn_gate_inp_shexp.weight"
        if not p.has(gate_name):
            return gated_mlp(p, i, x, m.shared_ff, "silu", out=out, residual=y, scale=scale, suffix="_shexp")
        shared = gated_mlp(p, i, x, m.shared_ff, "silu", out="shared", residual=None, suffix="_shexp")
        gate = p.vector_matmul("shared_gate", x, gate_name)
        p.add(AddGated(y, shared, gate, y))
    return y


def routed(
    p: ProgramBuilder,
    i: int,
    x: Buffer,
    m: Mixture,
    activation: ExpertActivation,
    *,
    out: str,
    residual: Buffer | None,
    scale: float = 1.0,
    router_input: Buffer | None = None,
) -> Buffer:
    """The routed experts alone, chosen by `x` or by `router_input`."""
    router = f"blk.{i}.ffn_gate_inp"
    logits = p.matmul("router", router_input or x, f"{router}.weight", m.n_experts, bias=bias_of(p, router))
    route = p.buffer("route", 2 * m.n_used)
    choice_bias = p.optional(f"blk.{i}.exp_probs_b.bias", m.n_experts)
    p.add(
        Route(
            route,
            logits,
            m.n_used,
            m.gating,
            choice_bias,
            m.n_groups,
            m.n_groups_used,
            m.is_normalized,
            m.scale * scale,
            p.optional(f"blk.{i}.ffn_down_exps.scale", m.n_experts),
        )
    )
    if m.n_ff % ROW_UNIT or x.width % ROW_UNIT:
        raise UnsupportedModelError(f"experts of {m.n_ff} by {x.width} values are not whole multiples of {ROW_UNIT}")

    def weight(part: str, rows: int, columns: int) -> tuple[str, str | None]:
        name = f"blk.{i}.ffn_{part}_exps"
        return (
            p.weight(f"{name}.weight", m.n_experts, rows, columns),
            p.optional(f"{name}.bias", m.n_experts, rows),
        )

    is_fused = p.has(f"blk.{i}.ffn_gate_up_exps.weight")
    gate, gate_bias = (None, None) if is_fused else weight("gate", m.n_ff, x.width)
    up, up_bias = weight("gate_up", 2 * m.n_ff, x.width) if is_fused else weight("up", m.n_ff, x.width)
    down, down_bias = weight("down", x.width, m.n_ff)
    buffer = p.buffer(out, x.width)
    p.add(
        Experts(
            buffer, x, route, residual, m.n_experts, m.n_ff, activation, gate, up, down, gate_bias, up_bias, down_bias
        )
    )
    return buffer
