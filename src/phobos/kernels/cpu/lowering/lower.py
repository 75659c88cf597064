"""Lowers a program to launches: which kernel, with which arguments, after which barrier.

The only place that knows both ops and kernels. Products with quantized weights take their activations quantized: the
quantized copy is made once for each value, and fused into the op that makes the value where nothing else reads its
floats. Barriers are placed where a launch touches what an unfinished one writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from phobos.kernels.cpu.cache import SlotCache
from phobos.kernels.cpu.layout import (
    BLOCK,
    GROUP,
    LINE,
    ROW_UNIT,
    SPAN,
    SPLIT_ROWS,
    Header,
    float_stride,
    packed_bytes,
    quantized_stride,
    round_up,
)
from phobos.kernels.cpu.lowering import experts as mixtures
from phobos.kernels.cpu.lowering import fusion, recurrent
from phobos.kernels.cpu.memory import Arena
from phobos.kernels.cpu.states import SlotStates
from phobos.kernels.cpu.weights import Weight
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
    StateLayer,
    Temper,
    reads_of,
    writes_of,
)


@dataclass(frozen=True)
class Launch:
    """One kernel of a pass. `reads` and `writes` name what it touches; `op` is what it is (part of) the doing of."""

    kernel: str
    arguments: tuple[int | float, ...]
    reads: frozenset[str]
    writes: frozenset[str]
    op: Op
    waits: bool = False


@dataclass(frozen=True)
class BatchAddresses:
    """Where the batch header lies, and the int32 row numbers of the wanted outputs."""

    header: int
    outputs: int


@dataclass(frozen=True)
class Limits:
    """Rows a pass can hold, and positions a slot can."""

    max_rows: int
    max_outputs: int
    n_ctx: int


def buffer_sizes(program: Program, weights: Mapping[str, Weight], limits: Limits) -> dict[str, int]:
    """Bytes of all that a pass writes beside the cache: buffers in whole tiles of rows, their quantized copies, and
    what attention and experts leave from launch to launch."""

    def rows(buffer: Buffer) -> int:
        return round_up(limits.max_outputs if buffer.per_output else limits.max_rows, ROW_UNIT)

    n_spans = round_up(limits.n_ctx, SPAN) // SPAN
    sizes = {b.name: rows(b) * float_stride(b.width) for b in program.buffers}
    for op in program.ops:
        if isinstance(op, MatMul) and mixtures.takes_codes(weights, op.weight):
            sizes[op.x.name + ".q8"] = rows(op.x) * quantized_stride(op.x.width)
        if isinstance(op, Attention):
            state = 128 + 4 * op.layer.v_dim
            sizes["parts"] = max(sizes.get("parts", 0), SPLIT_ROWS * op.n_heads * n_spans * state)
        if isinstance(op, Experts | HeadMatMul):
            for name, n_bytes in mixtures.scratch_sizes(op, weights, limits.max_rows).items():
                sizes[name] = max(sizes.get(name, 0), n_bytes)
        if isinstance(op, RopeTable):
            sizes[f"{op.out.name}.frequencies"] = 8 * len(op.frequencies)
    return sizes | dict.fromkeys(fusion.find_unstored(program, weights), 0)


class Lowering:
    """Assigns addresses and emits launches; used once for each load."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        cache: SlotCache,
        states: SlotStates,
        batch: BatchAddresses,
        limits: Limits,
    ) -> None:
        self._program = program
        self.weights = weights
        self._cache = cache
        self.states = states
        self.header = batch.header
        self._outputs = batch.outputs
        self.limits = limits
        self._launches: list[Launch] = []
        self._quantized: set[str] = set()  # buffers whose quantized copy is fresh
        self._n_spans = round_up(limits.n_ctx, SPAN) // SPAN
        self._coded = fusion.find_coded(program, weights)
        self._gated_products = fusion.find_gated_products(program, weights)
        sizes = buffer_sizes(program, weights, limits)
        self.arena = Arena(sum(round_up(n, LINE) for n in sizes.values()) + LINE * (8 * len(program.ops) + 4))
        self.addresses = {name: self.arena.take(n) for name, n in sizes.items()}

    # Addresses

    def at(self, buffer: Buffer) -> int:
        """Address of a buffer's first row."""
        return self.addresses[buffer.name]

    def count_at(self, buffer: Buffer) -> int:
        """Address of the number of rows a buffer has in this pass."""
        return self.header + 8 * (Header.N_OUTPUTS if buffer.per_output else Header.N_ROWS)

    def weight_at(self, name: str | None) -> int:
        return self.weights[name].address if name is not None else 0

    def state_at(self, state: StateLayer) -> int:
        """Address of a state of slot 0."""
        return self.states.addresses[state.index]

    def new_work(self) -> int:
        """A fresh counter of work items."""
        return self.arena.take(8)

    # Quantized activations

    def emit(
        self, kernel: str, arguments: tuple[int | float, ...], op: Op, *, reads: frozenset[str], writes: frozenset[str]
    ) -> None:
        """One more launch."""
        self._launches.append(Launch(kernel, arguments, reads, writes, op))
        self._quantized -= writes

    def _emit_producer(
        self, kernel: str, op: RmsNorm | LayerNorm | Glu | Activate, arguments: tuple[int | float, ...]
    ) -> None:
        """Emit an op that has a fused twin: quantizing where only codes are read, else plain."""
        if op.out.name in self._coded:
            self._emit_codes(f"{kernel}_quantize", arguments, op, reads_of(op), op.out)
        else:
            self.emit(kernel, (self.at(op.out), *arguments), op, reads=reads_of(op), writes=writes_of(op))

    def _emit_codes(
        self, kernel: str, arguments: tuple[int | float, ...], op: Op, reads: frozenset[str], out: Buffer
    ) -> None:
        """Emit a kernel that writes the quantized copy of `out`, whose address goes before the arguments."""
        target = out.name + ".q8"
        self.emit(kernel, (self.addresses[target], *arguments), op, reads=reads, writes=frozenset({target}))
        self._quantized.add(out.name)

    def codes_of(self, x: Buffer, op: Op) -> int:
        """Address of the quantized copy of `x`, made now if it is not fresh."""
        target = x.name + ".q8"
        if x.name not in self._quantized:
            arguments = (self.addresses[target], self.at(x), self.count_at(x), x.width)
            self.emit("norm:quantize", arguments, op, reads=frozenset({x.name}), writes=frozenset({target}))
            self._quantized.add(x.name)
        return self.addresses[target]

    # Ops

    def lower(self) -> tuple[Launch, ...]:
        """All launches of a pass, barriers placed."""
        done: set[int] = set()
        for i, op in enumerate(self._program.ops):
            if i in self._gated_products:
                self._gated_product(self._gated_products[i])
                done |= {i, i + 1, i + 2}
            if i in done:
                continue
            match op:
                case Embed():
                    self._embed(op)
                case RopeTable():
                    self._rope_table(op)
                case RmsNorm():
                    self._rms_norm(op)
                case MatMul():
                    self._matmul(op)
                case RotateStore():
                    self._rotate_store(op)
                case Attention():
                    self._attention(op)
                case Glu():
                    self._glu(op)
                case SoftCap():
                    self._soft_cap(op)
                case LayerNorm() | HeadNorm():
                    self._other_norm(op)
                case Activate():
                    arguments = (self.at(op.x), self.count_at(op.out), op.out.width)
                    self._emit_producer(f"columns:activate_{op.activation}", op, arguments)
                case Route() | AddGated():
                    self._route(op)
                case Experts():
                    mixtures.lower_experts(self, op)
                case HeadMatMul():
                    mixtures.lower_heads(self, op)
                case Mix() | MatchLength() | Sparsify():
                    self._streams(op)
                case ShortConv():
                    recurrent.lower_short_conv(self, op)
                case GatedDelta():
                    recurrent.lower_gated_delta(self, op)
                case SelectiveScan():
                    recurrent.lower_selective_scan(self, op)
                case Splice() | Add() | AddPosition() | Temper():
                    self._columns(op)
        return place_barriers(self._launches)

    def _gated_product(self, product: fusion.GatedProduct) -> None:
        gate, up, glu = product.gate, product.up, product.glu
        kind = self.weights[gate.weight].kind
        assert kind is not None
        x = self.codes_of(gate.x, gate)
        arguments = (
            x, self._matrix_at(gate), self._matrix_at(up), self.count_at(glu.out), self.header, self.new_work(),
            glu.out.width, gate.x.width,
        )  # fmt: skip
        reads = frozenset({gate.x.name + ".q8"})
        self._emit_codes(f"gated:gated_{kind.name}_{glu.activation}", arguments, gate, reads, glu.out)

    def _glu(self, op: Glu) -> None:
        arguments = (self.at(op.gate), self.at(op.up), self.count_at(op.out), op.out.width)
        self._emit_producer(f"pointwise:glu_{op.activation}", op, arguments)

    def _route(self, op: Route | AddGated) -> None:
        arguments: tuple[int | float, ...]
        if isinstance(op, Route):
            kernel = "moe:route"
            arguments = (
                self.at(op.out), self.at(op.logits), self.weight_at(op.bias), self.count_at(op.out), self.header,
                op.logits.width, op.n_used, mixtures.GATINGS[op.gating], op.n_groups, op.n_groups_used,
                int(op.is_normalized), float(op.scale), self.weight_at(op.expert_scales),
            )  # fmt: skip
        else:
            kernel = "moe:add_gated"
            arguments = (
                self.at(op.out), self.at(op.x), self.at(op.gate), self.at(op.residual), self.count_at(op.out),
                op.out.width,
            )  # fmt: skip
        self.emit(kernel, arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _other_norm(self, op: LayerNorm | HeadNorm) -> None:
        arguments: tuple[int | float, ...]
        if isinstance(op, LayerNorm):
            rows_of = self._outputs if op.out.per_output and not op.x.per_output else 0
            weights = (self.weight_at(op.weight), self.weight_at(op.bias))
            arguments = (self.at(op.x), *weights, rows_of, self.count_at(op.out), op.x.width, float(op.eps))
            self._emit_producer("layer_norm:layer_norm", op, arguments)
            return
        dim = op.x.width // op.n_heads
        arguments = (
            self.at(op.out), self.at(op.x), self.weight_at(op.weight), self.count_at(op.out), op.n_heads, dim,
            4 * dim * op.has_own_weights, float(op.eps),
        )  # fmt: skip
        self.emit("layer_norm:head_norm", arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _columns(self, op: Splice | Add | AddPosition | Temper) -> None:
        arguments: tuple[int | float, ...]
        match op:
            case Splice():
                kernel = "columns:splice"
                arguments = (
                    self.at(op.out), self.at(op.x), self.count_at(op.out), op.out.width, op.x.width, op.n_heads,
                    op.width, op.x_start, op.x_stride, op.out_start, op.out_stride,
                )  # fmt: skip
            case Add():
                kernel = "columns:add"
                residual = self.at(op.residual) if op.residual is not None else 0
                arguments = (
                    self.at(op.out), self.at(op.x), residual, self.count_at(op.out), op.out.width, float(op.scale),
                    self.weight_at(op.weight), int(op.weight is not None and self.weights[op.weight].n_bytes > LINE),
                )  # fmt: skip
            case AddPosition():
                kernel = "columns:add_position"
                arguments = (
                    self.at(op.x), self.weight_at(op.weight), self.header, self.count_at(op.x), op.x.width,
                )  # fmt: skip
            case Temper():
                kernel = "columns:temper"
                arguments = (
                    self.at(op.x), self.header, self.count_at(op.x), op.x.width, float(op.slope), op.span,
                )  # fmt: skip
        self.emit(kernel, arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _streams(self, op: Mix | MatchLength | Sparsify) -> None:
        arguments: tuple[int | float, ...]
        match op:
            case Mix():
                kernel = "streams:mix"
                coefficients, residual = (self.at(b) if b is not None else 0 for b in (op.coefficients, op.residual))
                arguments = (
                    self.at(op.out), self.at(op.x), coefficients, residual, self.count_at(op.out),
                    op.x.width // op.n_in, op.n_out, op.n_in, op.skipped, float(op.offset),
                )  # fmt: skip
            case MatchLength():
                kernel = "streams:match_length"
                width = op.x.width // op.n_heads
                arguments = (self.at(op.x), self.at(op.target), self.count_at(op.x), op.n_heads, width)
            case Sparsify():
                kernel = "streams:sparsify"
                arguments = (self.at(op.x), self.count_at(op.x), op.x.width, float(op.multiplier))
        self.emit(kernel, arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _soft_cap(self, op: SoftCap) -> None:
        arguments = (self.at(op.x), self.count_at(op.x), op.x.width, float(op.cap))
        self.emit("pointwise:soft_cap", arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _embed(self, op: Embed) -> None:
        weight = self.weights[op.weight]
        assert weight.kind is not None
        arguments = (
            self.at(op.out),
            weight.address,
            self.header,
            self.count_at(op.out),
            op.out.width,
            float(op.scale),
        )
        self.emit(f"pointwise:embed_{weight.kind.name}", arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _rope_table(self, op: RopeTable) -> None:
        """A frequency is kept as two float32 whose sum is the float64."""
        exact = np.array(op.frequencies, np.float64)
        high = exact.astype(np.float32)
        pairs = np.stack([high, (exact - high).astype(np.float32)], axis=1)
        address = self.addresses[f"{op.out.name}.frequencies"]
        self.arena.view(address, pairs.nbytes)[:] = pairs.view(np.uint8).ravel()
        arguments = (
            self.at(op.out), address, self.header, self.count_at(op.out), len(op.frequencies), float(op.magnitude),
        )  # fmt: skip
        self.emit("rope:rope_table", arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _rms_norm(self, op: RmsNorm) -> None:
        rows_of = self._outputs if op.out.per_output and not op.x.per_output else 0
        head = (self.at(op.x), self.weight_at(op.weight))
        tail = (rows_of, self.count_at(op.out), op.x.width, float(op.eps))
        if op.residual is None and op.out.name in self._coded:
            self._emit_codes("norm:rms_norm_quantize", (*head, *tail), op, reads_of(op), op.out)
            return
        residual = self.at(op.residual) if op.residual is not None else 0
        arguments = (self.at(op.out), *head, residual, *tail)
        self.emit("norm:rms_norm", arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _matmul(self, op: MatMul) -> None:
        weight = self.weights[op.weight]
        assert weight.kind is not None
        codes = mixtures.takes_codes(self.weights, op.weight)
        x = self.codes_of(op.x, op) if codes else self.at(op.x)
        bias = self.weight_at(op.bias) + 4 * op.first_row if op.bias is not None else 0
        arguments = (
            self.at(op.out), x, self._matrix_at(op), bias,
            self.at(op.residual) if op.residual is not None else 0, self.count_at(op.out), self.header, self.new_work(),
            op.out.width, op.x.width, float(op.scale),
        )  # fmt: skip
        reads = reads_of(op)
        if codes:
            residual = {op.residual.name} if op.residual is not None else set()
            reads = frozenset({op.x.name + ".q8"} | residual)
        self.emit(f"matmul:matmul_{weight.kind.name}", arguments, op, reads=reads, writes=writes_of(op))

    def _matrix_at(self, op: MatMul) -> int:
        """Address of the first group of a weight that is used."""
        weight = self.weights[op.weight]
        assert weight.kind is not None
        return weight.address + op.first_row // GROUP * packed_bytes(weight.kind, GROUP, op.x.width)

    def _rotate_store(self, op: RotateStore) -> None:
        layer, cache = op.layer, self._cache.layers[op.layer.index]
        k, v, table = (self.at(buffer) if buffer is not None else 0 for buffer in (op.k, op.v, op.table))
        arguments = (
            self.at(op.q), k, v, table, cache.keys, cache.values, cache.key_slot_bytes, cache.value_slot_bytes,
            self.header, self.count_at(op.q), op.n_heads, layer.n_kv_heads if op.k is not None else 0, layer.k_dim,
            layer.v_dim, op.table.width // 2 if op.table is not None else 0, int(op.style == "neox"),
            self.weight_at(op.q_norm), self.weight_at(op.k_norm), float(op.eps),
        )  # fmt: skip
        self.emit(f"rope:rotate_store_{self._cache.formats}", arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _attention(self, op: Attention) -> None:
        layer = op.layer
        cache = self._cache.layers[layer.index]
        parts = self.addresses["parts"]
        arguments: tuple[int | float, ...] = (
            self.at(op.out), parts, self.at(op.q), cache.keys, cache.values, cache.key_slot_bytes,
            cache.value_slot_bytes, self.header, self.count_at(op.out), self.new_work(), op.n_heads, layer.n_kv_heads,
            layer.k_dim, layer.v_dim, layer.window, self._n_spans, float(op.scale), float(op.soft_cap),
            self.weight_at(op.sinks),
        )  # fmt: skip
        writes = writes_of(op) | {"parts"}
        self.emit(f"attention:attention_{self._cache.formats}", arguments, op, reads=reads_of(op), writes=writes)
        shape = (
            parts,
            self.header,
            self.count_at(op.out),
            op.n_heads,
            layer.v_dim,
            layer.window,
            self._n_spans,
            self.weight_at(op.sinks),
        )
        if layer.v_dim % BLOCK == 0 and op.out.name in self._coded:
            reads = writes_of(op) | {"parts"}
            self._emit_codes("attention:attention_merge_quantize", (self.at(op.out), *shape), op, reads, op.out)
        else:
            arguments = (self.at(op.out), *shape)
            self.emit("attention:attention_merge", arguments, op, reads=frozenset({"parts"}), writes=writes_of(op))


def place_barriers(launches: list[Launch]) -> tuple[Launch, ...]:
    """A launch waits where it reads what one since the last barrier wrote, or writes what one read or wrote."""
    placed: list[Launch] = []
    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    for launch in launches:
        waits = bool(launch.reads & written or launch.writes & (read | written))
        if waits:
            read, written = frozenset(), frozenset()
        read |= launch.reads
        written |= launch.writes
        placed.append(replace(launch, waits=waits))
    return tuple(placed)
