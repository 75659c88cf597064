"""Lowers a program to launches on a card: which kernel, with which arguments, on which grid.

One case for each op; `experts.py`, `recurrent.py` and `joined.py` hold those of several launches. Grids follow the
shape class of a pass (rows and outputs, rounded up); kernels read the true counts from the card's memory, so that a
recorded pass serves its whole class. Products with quantized weights take their activations quantized; the copy is made
by the op that makes the value where that can.
"""

from __future__ import annotations

from collections.abc import Mapping

from phobos.errors import UnsupportedModelError
from phobos.kernels.backend import BackendLimits
from phobos.kernels.cuda.cache import Formats, SlotCache
from phobos.kernels.cuda.card import Card, GridLaunch
from phobos.kernels.cuda.layout import (
    BLOCK,
    CODED_K_DIM_MAX,
    MAX_EXPERTS,
    NORM_THREADS,
    QUERIES,
    ROWS_OF_BLOCK,
    SPLIT_ROWS,
    STAGE_COLUMNS,
    STAGE_OUTPUTS,
    STAGE_THREADS,
    STAGED_ROWS,
    THREADS,
    TILE_COLUMNS,
    TILE_OUTPUTS,
    VALUE_PAIRS,
    WARP,
    WARP_QUERIES,
    quantized_stride,
    span_of,
)
from phobos.kernels.cuda.lowering import experts, fusion, joined, recurrent
from phobos.kernels.cuda.lowering.buffers import ARRIVALS, CHOICE_SPAN
from phobos.kernels.cuda.lowering.fusion import Fusion
from phobos.kernels.cuda.lowering.launches import LaunchBuilder
from phobos.kernels.cuda.names import (
    activations,
    attention,
    embed,
    made,
    matmul,
    matmul_stages,
    matmul_tile,
    norm,
    pointwise,
    rope,
    sampling,
)
from phobos.kernels.cuda.states import SlotStates
from phobos.kernels.cuda.weights import Weight, takes_codes
from phobos.program.steps import (
    Activate,
    Add,
    AddGated,
    AddPosition,
    Attention,
    Buffer,
    Embed,
    Experts,
    GatedDelta,
    Glu,
    HeadMatMul,
    HeadNorm,
    LayerNorm,
    MatchLength,
    MatMul,
    Mix,
    Op,
    Program,
    RmsNorm,
    RopeTable,
    RotateStore,
    Route,
    SelectiveScan,
    ShortConv,
    SoftCap,
    Sparsify,
    Splice,
    Temper,
    writes_of,
)


def _pairs_of(op: Attention) -> int:
    """Pairs of value dimensions a lane of attention has."""
    return next(n for n in VALUE_PAIRS if 2 * WARP * n >= op.layer.v_dim)


def check_program(program: Program, formats: Formats) -> None:
    """`UnsupportedModelError` for shapes that the kernels cannot take."""
    for op in program.ops:
        recurrent.check_recurrent(op)
        if isinstance(op, Attention) and (
            op.layer.k_dim % 8 or op.layer.v_dim % 2 or op.layer.v_dim > 2 * WARP * VALUE_PAIRS[-1]
        ):
            raise UnsupportedModelError(
                f"attention heads of {op.layer.k_dim} and {op.layer.v_dim} values do not run on a card: "
                "use --device cpu"
            )
        if isinstance(op, Attention) and formats[0] != "f16" and op.layer.k_dim > CODED_K_DIM_MAX:
            raise UnsupportedModelError(
                f"keys of {op.layer.k_dim} values do not run on a card with --cache-type-k {formats[0]}: use f16"
            )
        if isinstance(op, Route) and op.logits.width > MAX_EXPERTS:
            raise UnsupportedModelError(f"{op.logits.width} experts do not run on a card: use --device cpu")


class Lowering(LaunchBuilder):
    """`lower` gives the launches of a shape class."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        cache: SlotCache,
        states: SlotStates,
        card: Card,
        limits: BackendLimits,
    ) -> None:
        super().__init__(program, weights, cache, states, card, limits)
        self._program = program
        self._span = span_of(limits.n_ctx)
        self._n_spans = -(-limits.n_ctx // self._span)
        self._fusions = fusion.find_fusions(program, weights)

    def lower(
        self, n_rows: int, n_outputs: int, n_choices: int | None = None
    ) -> tuple[tuple[GridLaunch, ...], tuple[Op | Fusion, ...]]:
        """The launches of a pass of up to so many rows and wanted outputs, and what each is (part of) the doing of.
        With `n_choices` the best of so many first tokens is found too, see `chosen_at`."""
        self.begin(n_rows, n_outputs)
        fused_up_to = 0
        for i, op in enumerate(self._program.ops):
            fused = self._fusions.get(i)
            if fused is not None and joined.can_lower(self, fused):
                joined.lower_fusion(self, fused)
                fused_up_to = i + len(fused.ops)
            elif i >= fused_up_to:
                self._lower(op)
            self.quantized -= writes_of(op)
            if isinstance(op, RmsNorm | LayerNorm | Glu | Activate | Attention) and self._makes_codes(op):
                self.quantized.add(op.out.name)
        if n_choices is not None:
            self._choose(n_choices)
        return tuple(self.launches), tuple(self.ops)

    @property
    def chosen_at(self) -> int:
        """Address of the best tokens of a pass, int32 [n_outputs]."""
        return self.addresses["chosen"]

    def _choose(self, n_choices: int) -> None:
        logits, last = self._program.logits, self._program.ops[-1]
        assert logits is not None, "a stage in the middle has nothing to choose from"
        count, n_spans = self.count_at(logits), -(-n_choices // CHOICE_SPAN)
        arguments = (self.addresses["best"], self.at(logits), count, logits.width, n_choices, CHOICE_SPAN)
        grid = (n_spans, self.rows_of(logits), 1)
        self.emit(sampling.find_best, arguments, last, grid, n_threads=NORM_THREADS)
        chosen = (self.chosen_at, self.addresses["best"], count, n_spans)
        self.emit(sampling.choose, chosen, last, (self.rows_of(logits), 1, 1), n_threads=WARP)

    def _makes_codes(self, op: RmsNorm | LayerNorm | Glu | Activate | Attention) -> bool:
        """Whether the op itself writes the quantized copy of its value."""
        can = not isinstance(op, Attention) or (self._is_split() and op.layer.v_dim % BLOCK == 0)
        return can and op.out.name + ".q8" in self.addresses

    def _is_split(self) -> bool:
        return self.n_rows <= SPLIT_ROWS

    def _lower(self, op: Op) -> None:
        match op:
            case MatMul():
                self._matmul(op)
            case RmsNorm() | LayerNorm():
                self._norm(op)
            case RotateStore():
                self._rotate_store(op)
            case Attention():
                self._attention(op)
            case Glu() | Activate():
                self._activation(op)
            case Embed() | RopeTable():
                self._begin(op)
            case HeadNorm():
                dim = op.x.width // op.n_heads
                arguments = (self.at(op.out), self.at(op.x), self.vector(op.weight), self.count_at(op.out))
                grid = (-(-op.n_heads // (THREADS // WARP)), self.rows_of(op.out), 1)
                sizes = (op.n_heads, dim, 4 * dim * op.has_own_weights)
                self.emit(norm.head_norm, (*arguments, *sizes, float(op.eps)), op, grid)
            case Experts():
                experts.lower_experts(self, op)
            case HeadMatMul():
                experts.lower_heads(self, op)
            case Route():
                experts.lower_route(self, op)
            case ShortConv():
                recurrent.lower_short_conv(self, op)
            case GatedDelta():
                recurrent.lower_gated_delta(self, op)
            case SelectiveScan():
                recurrent.lower_selective_scan(self, op)
            case Mix() | MatchLength() | Sparsify():
                recurrent.lower_streams(self, op)
            case SoftCap() | Splice() | Add() | AddGated() | AddPosition() | Temper():
                self._pointwise(op)

    def _values_grid(self, buffer: Buffer, width: int) -> tuple[int, int, int]:
        return -(-width // THREADS), self.rows_of(buffer), 1

    def _begin(self, op: Embed | RopeTable) -> None:
        if isinstance(op, Embed):
            weight = self.weights[op.weight]
            assert weight.kind is not None
            width = op.out.width if weight.kind.is_float else op.out.width // BLOCK
            values = (self.at(op.out), *weight.planes, self.tokens, self.count_at(op.out), op.out.width)
            grid = self._values_grid(op.out, width)
            self.emit(made(embed, "embed", weight.kind.name), (*values, float(op.scale)), op, grid)
            return
        n = len(op.frequencies)
        frequencies = self.addresses[f"{op.out.name}.frequencies"]
        arguments = (self.at(op.out), frequencies, self.positions, self.count_at(op.out), n, float(op.magnitude))
        self.emit(rope.rope_table, arguments, op, self._values_grid(op.out, n))

    def _norm(self, op: RmsNorm | LayerNorm) -> None:
        rows_of = self.outputs if op.out.per_output and not op.x.per_output else 0
        kernel = norm.rms_norm if isinstance(op, RmsNorm) else norm.layer_norm
        extra = self.at(op.residual) if isinstance(op, RmsNorm) else self.vector(op.bias)
        arguments = (
            *self.outputs_of(op.out), self.at(op.x), self.vector(op.weight), extra, rows_of, self.count_at(op.out),
            op.x.width, float(op.eps),
        )  # fmt: skip
        self.emit(kernel, arguments, op, (self.rows_of(op.out), 1, 1), n_threads=NORM_THREADS)

    def _activation(self, op: Glu | Activate) -> None:
        sources = (self.at(op.gate), self.at(op.up)) if isinstance(op, Glu) else (self.at(op.x),)
        arguments = (*self.outputs_of(op.out), *sources, self.count_at(op.out), 1, op.out.width)
        form = "glu" if isinstance(op, Glu) else "activate"
        grid = self._values_grid(op.out, op.out.width)
        self.emit(made(activations, form, op.activation), arguments, op, grid)

    def _pointwise(self, op: SoftCap | Splice | Add | AddGated | AddPosition | Temper) -> None:
        arguments: tuple[int | float, ...]
        out = op.x if isinstance(op, SoftCap | AddPosition | Temper) else op.out
        count, width = self.count_at(out), out.width
        match op:
            case SoftCap():
                kernel, arguments = pointwise.soft_cap, (self.at(out), count, width, float(op.cap))
            case Splice():
                kernel, width = pointwise.splice, op.n_heads * op.width
                arguments = (
                    self.at(out), self.at(op.x), count, out.width, op.x.width, op.n_heads, op.width, op.x_start,
                    op.x_stride, op.out_start, op.out_stride,
                )  # fmt: skip
            case Add():
                kernel = pointwise.add
                step = 4 if op.weight is not None and self.weights[op.weight].shape[1] > 1 else 0
                arguments = (
                    self.at(out), self.at(op.x), self.at(op.residual), count, width, self.vector(op.weight), step,
                    float(op.scale),
                )  # fmt: skip
            case AddGated():
                kernel = pointwise.add_gated
                arguments = (self.at(out), self.at(op.x), self.at(op.gate), self.at(op.residual), count, width)
            case AddPosition():
                kernel, arguments = (
                    pointwise.add_position,
                    (self.at(out), self.vector(op.weight), self.positions, count, width),
                )
            case Temper():
                kernel, arguments = (
                    pointwise.temper,
                    (self.at(out), self.positions, count, width, op.span, float(op.slope)),
                )
        self.emit(kernel, arguments, op, self._values_grid(out, width))

    def _matmul(self, op: MatMul) -> None:
        weight = self.weights[op.weight]
        assert weight.kind is not None
        if takes_codes(self.weights, op.weight):
            x, stride = self.codes_of(op.x, op), quantized_stride(op.x.width)
        else:
            x, stride = self.at(op.x), 4 * op.x.width
        n_rows = self.rows_of(op.out)
        n_tile = self.tile_of(n_rows)
        if not self.is_few(op):
            self._tiled_matmul(op, weight, x, stride)
            return
        arguments = (
            self.at(op.out), x, *weight.planes, self.vector(op.bias), self.at(op.residual), self.count_at(op.out),
            0, 0, 1, op.out.width, op.x.width, op.first_row, stride, 4 * op.out.width, 0, 0, 0, float(op.scale),
        )  # fmt: skip
        grid = (-(-op.out.width // ROWS_OF_BLOCK), -(-n_rows // n_tile), 1)
        self.emit(made(matmul, "matmul", weight.kind.name, n_tile), arguments, op, grid)

    def _tiled_matmul(self, op: MatMul, weight: Weight, x: int, stride: int) -> None:
        """A product on tensor cores."""
        assert weight.kind is not None
        n_rows, n_out = self.rows_of(op.out), op.out.width
        head = (self.at(op.out), x, *weight.planes, self.vector(op.bias), self.at(op.residual), self.count_at(op.out))
        sizes = (n_out, op.x.width, op.first_row, stride)
        if n_rows >= STAGED_ROWS:
            grid = (-(-n_rows // STAGE_COLUMNS), -(-n_out // STAGE_OUTPUTS), 1)
            arguments = (*head, *sizes, float(op.scale))
            self.emit(made(matmul_stages, "matmul", weight.kind.name), arguments, op, grid, n_threads=STAGE_THREADS)
            return
        grid = (-(-n_out // TILE_OUTPUTS), -(-n_rows // TILE_COLUMNS), 1)
        tiled = (*head, 0, 0, 1, *sizes, 4 * n_out, 0, 0, 0, float(op.scale))
        self.emit(made(matmul_tile, "matmul", weight.kind.name), tiled, op, grid)

    def _rotate_store(self, op: RotateStore) -> None:
        heads = (self.at(op.q), self.at(op.k), self.at(op.v))
        n_kv_heads = op.layer.n_kv_heads if op.k is not None else 0
        grid = (-(-(op.n_heads + 2 * n_kv_heads) // (THREADS // WARP)), self.rows_of(op.q), 1)
        arguments = (*heads, self.count_at(op.q), self.rotation_of(op))
        self.emit(made(rope, "rotate_store", self.formats), arguments, op, grid)

    def _attention(self, op: Attention) -> None:
        layer, cache = op.layer, self._cache.layers[op.layer.index]
        group, n_rows = op.n_heads // layer.n_kv_heads, self.rows_of(op.out)
        n_pairs = _pairs_of(op)
        parts = self.addresses["parts"]
        head = (
            self.at(op.q), cache.keys, cache.values, cache.key_slot, cache.value_slot, cache.key_head, cache.value_head,
            self.positions, self.places, self.shared, self.slots, self.count_at(op.out), op.n_heads, group,
            layer.k_dim, layer.v_dim, layer.window, self._span,
        )  # fmt: skip
        tail = (float(op.scale), float(op.soft_cap))
        n_threads = QUERIES * WARP
        if not self._is_split():
            arguments = (self.at(op.out), *head, self.vector(op.sinks), *tail)
            grid = (-(-n_rows * group // (QUERIES * WARP_QUERIES[n_pairs])), layer.n_kv_heads, 1)
            self.emit(made(attention, "attention", self.formats, n_pairs), arguments, op, grid, n_threads=n_threads)
            return
        queries = -(-n_rows * group // QUERIES)
        grid = (queries, layer.n_kv_heads, self._n_spans)
        floats, codes = self.outputs_of(op.out) if self._makes_codes(op) else (self.at(op.out), 0)
        merge = (floats, codes, self.vector(op.sinks), self.addresses[ARRIVALS])
        split = (parts, *head, self._n_spans, *merge, *tail)
        self.emit(made(attention, "attention_split", self.formats, n_pairs), split, op, grid, n_threads=n_threads)
