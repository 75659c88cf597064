"""Lowers a program to launches: which kernel, with which arguments, after which barrier.

One case for each op; `experts.py` and `recurrent.py` hold those of several launches. Products with quantized weights
take their activations quantized: the copy is made once for each value, by the op that makes the value where nothing
else reads its floats.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from phobos.kernels.backend import BackendLimits
from phobos.kernels.cpu.cache import SlotCache
from phobos.kernels.cpu.layout import (
    BLOCK,
    GROUP,
    LINE,
    SPAN,
    round_up,
)
from phobos.kernels.cpu.lowering import experts, fusion, recurrent
from phobos.kernels.cpu.lowering.launches import BatchAddresses, Launch, LaunchBuilder
from phobos.kernels.cpu.names import (
    activations,
    attention,
    embed,
    gated,
    made,
    matmul,
    moe,
    norm,
    pointwise,
    rope,
    streams,
)
from phobos.kernels.cpu.packed_types import packed_bytes
from phobos.kernels.cpu.states import SlotStates
from phobos.kernels.cpu.weights import Weight, takes_codes
from phobos.program.steps import (
    Activate,
    Add,
    AddGated,
    AddPosition,
    Attention,
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
    reads_of,
    writes_of,
)


class Lowering(LaunchBuilder):
    """Visits the ops of a program; used once for each load."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        cache: SlotCache,
        states: SlotStates,
        batch: BatchAddresses,
        limits: BackendLimits,
    ) -> None:
        super().__init__(program, weights, states, batch, limits)
        self._program = program
        self._cache = cache
        self._n_spans = round_up(limits.n_ctx, SPAN) // SPAN
        self._gated_products = fusion.find_gated_products(program, weights)

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
                    self._activation("activate", op, arguments)
                case Route() | AddGated():
                    self._route(op)
                case Experts():
                    experts.lower_experts(self, op)
                case HeadMatMul():
                    experts.lower_heads(self, op)
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
        return self.launches

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
        self.emit_codes(made(gated, "gated", kind.name, glu.activation), arguments, gate, reads, glu.out)

    def _glu(self, op: Glu) -> None:
        arguments = (self.at(op.gate), self.at(op.up), self.count_at(op.out), op.out.width)
        self._activation("glu", op, arguments)

    def _activation(self, form: str, op: Glu | Activate, arguments: tuple[int | float, ...]) -> None:
        plain = made(activations, form, op.activation)
        self.emit_producer(plain, made(activations, form, op.activation, "quantize"), op, arguments)

    def _route(self, op: Route | AddGated) -> None:
        arguments: tuple[int | float, ...]
        if isinstance(op, Route):
            kernel = moe.route
            arguments = (
                self.at(op.out), self.at(op.logits), self.weight_at(op.bias), self.count_at(op.out), self.header,
                op.logits.width, op.n_used, experts.GATINGS[op.gating], op.n_groups, op.n_groups_used,
                int(op.is_normalized), float(op.scale), self.weight_at(op.expert_scales),
            )  # fmt: skip
        else:
            kernel = pointwise.add_gated
            arguments = (
                self.at(op.out), self.at(op.x), self.at(op.gate), self.at(op.residual), self.count_at(op.out),
                op.out.width,
            )  # fmt: skip
        self.emit(kernel, arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _other_norm(self, op: LayerNorm | HeadNorm) -> None:
        arguments: tuple[int | float, ...]
        if isinstance(op, LayerNorm):
            rows_of = self.outputs if op.out.per_output and not op.x.per_output else 0
            weights = (self.weight_at(op.weight), self.weight_at(op.bias))
            arguments = (self.at(op.x), *weights, rows_of, self.count_at(op.out), op.x.width, float(op.eps))
            self.emit_producer(norm.layer_norm, norm.layer_norm_quantize, op, arguments)
            return
        dim = op.x.width // op.n_heads
        arguments = (
            self.at(op.out), self.at(op.x), self.weight_at(op.weight), self.count_at(op.out), op.n_heads, dim,
            4 * dim * op.has_own_weights, float(op.eps),
        )  # fmt: skip
        self.emit(norm.head_norm, arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _columns(self, op: Splice | Add | AddPosition | Temper) -> None:
        arguments: tuple[int | float, ...]
        match op:
            case Splice():
                kernel = pointwise.splice
                arguments = (
                    self.at(op.out), self.at(op.x), self.count_at(op.out), op.out.width, op.x.width, op.n_heads,
                    op.width, op.x_start, op.x_stride, op.out_start, op.out_stride,
                )  # fmt: skip
            case Add():
                kernel = pointwise.add
                residual = self.at(op.residual) if op.residual is not None else 0
                arguments = (
                    self.at(op.out), self.at(op.x), residual, self.count_at(op.out), op.out.width, float(op.scale),
                    self.weight_at(op.weight), int(op.weight is not None and self.weights[op.weight].n_bytes > LINE),
                )  # fmt: skip
            case AddPosition():
                kernel = pointwise.add_position
                arguments = (
                    self.at(op.x), self.weight_at(op.weight), self.header, self.count_at(op.x), op.x.width,
                )  # fmt: skip
            case Temper():
                kernel = pointwise.temper
                arguments = (
                    self.at(op.x), self.header, self.count_at(op.x), op.x.width, op.span, float(op.slope),
                )  # fmt: skip
        self.emit(kernel, arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _streams(self, op: Mix | MatchLength | Sparsify) -> None:
        arguments: tuple[int | float, ...]
        match op:
            case Mix():
                kernel = streams.mix
                coefficients, residual = (self.at(b) if b is not None else 0 for b in (op.coefficients, op.residual))
                arguments = (
                    self.at(op.out), self.at(op.x), coefficients, residual, self.count_at(op.out),
                    op.x.width // op.n_in, op.n_out, op.n_in, op.skipped, float(op.offset),
                )  # fmt: skip
            case MatchLength():
                kernel = streams.match_length
                width = op.x.width // op.n_heads
                arguments = (self.at(op.x), self.at(op.target), self.count_at(op.x), op.n_heads, width)
            case Sparsify():
                kernel = streams.sparsify
                arguments = (self.at(op.x), self.count_at(op.x), op.x.width, float(op.multiplier))
        self.emit(kernel, arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _soft_cap(self, op: SoftCap) -> None:
        arguments = (self.at(op.x), self.count_at(op.x), op.x.width, float(op.cap))
        self.emit(pointwise.soft_cap, arguments, op, reads=reads_of(op), writes=writes_of(op))

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
        self.emit(made(embed, "embed", weight.kind.name), arguments, op, reads=reads_of(op), writes=writes_of(op))

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
        self.emit(rope.rope_table, arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _rms_norm(self, op: RmsNorm) -> None:
        rows_of = self.outputs if op.out.per_output and not op.x.per_output else 0
        head = (self.at(op.x), self.weight_at(op.weight))
        tail = (rows_of, self.count_at(op.out), op.x.width, float(op.eps))
        if op.residual is None and op.out.name in self.coded:
            self.emit_codes(norm.rms_norm_quantize, (*head, *tail), op, reads_of(op), op.out)
            return
        residual = self.at(op.residual) if op.residual is not None else 0
        arguments = (self.at(op.out), *head, residual, *tail)
        self.emit(norm.rms_norm, arguments, op, reads=reads_of(op), writes=writes_of(op))

    def _matmul(self, op: MatMul) -> None:
        weight = self.weights[op.weight]
        assert weight.kind is not None
        codes = takes_codes(self.weights, op.weight)
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
        self.emit(made(matmul, "matmul", weight.kind.name), arguments, op, reads=reads, writes=writes_of(op))

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
        self.emit(
            made(rope, "rotate_store", self._cache.formats), arguments, op, reads=reads_of(op), writes=writes_of(op)
        )

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
        self.emit(made(attention, "attention", self._cache.formats), arguments, op, reads=reads_of(op), writes=writes)
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
        if layer.v_dim % BLOCK == 0 and op.out.name in self.coded:
            reads = writes_of(op) | {"parts"}
            self.emit_codes(attention.attention_merge_quantize, (self.at(op.out), *shape), op, reads, op.out)
        else:
            arguments = (self.at(op.out), *shape)
            self.emit(attention.attention_merge, arguments, op, reads=frozenset({"parts"}), writes=writes_of(op))
