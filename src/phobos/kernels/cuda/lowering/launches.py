"""The launches of a pass in the making: what every op is lowered with.

Addresses of buffers, weights, states and of the batch; the shape class that is being lowered; the launches emitted so
far, and which quantized copies are fresh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from phobos.errors import UnsupportedModelError
from phobos.kernels.backend import BackendLimits
from phobos.kernels.cuda.cache import SlotCache
from phobos.kernels.cuda.card import Card, GridLaunch
from phobos.kernels.cuda.layout import BLOCK, HEADER_WORDS, N_ARRAYS, THREADS, TILED_ROWS, WARP, Header
from phobos.kernels.cuda.lowering.buffers import buffer_sizes
from phobos.kernels.cuda.lowering.fusion import Fusion
from phobos.kernels.cuda.names import Named, norm
from phobos.kernels.cuda.records import Matrix, Record, Rotation
from phobos.kernels.cuda.states import SlotStates
from phobos.kernels.cuda.weights import Weight, takes_codes
from phobos.kernels.float_readers import find_float_readers
from phobos.program.steps import Buffer, MatMul, Op, Program, RopeTable, RotateStore, StateLayer

MAX_GRID = 65535  # in the second and third direction
ROW_COUNTS = (1, 8)  # as `matmul.ROW_COUNTS`


class LaunchBuilder:
    """Places all memory of a pass once, and collects the launches of one shape class after another."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        cache: SlotCache,
        states: SlotStates,
        card: Card,
        limits: BackendLimits,
    ) -> None:
        self.weights = weights
        self._cache = cache
        self.formats = "_".join(cache.formats)  # in the names of kernels
        self.states = states
        self._float_readers = find_float_readers(program, lambda name: takes_codes(weights, name))
        self.batch_words = HEADER_WORDS + N_ARRAYS * limits.max_rows
        self.batch = card.allocate(4 * self.batch_words)
        first = self.batch + 4 * HEADER_WORDS
        arrays = (first + 4 * limits.max_rows * i for i in range(N_ARRAYS))
        self.tokens, self.positions, self.slots, self.outputs, self.places, self.shared = arrays
        sizes = buffer_sizes(program, weights, limits)
        self.n_bytes = 4 * self.batch_words + sum(sizes.values())
        self.addresses = {name: card.allocate(n) for name, n in sizes.items()}
        _send_frequencies(card, program, self.addresses)
        self.launches: list[GridLaunch] = []
        self.ops: list[Op | Fusion] = []
        self.quantized: set[str] = set()  # buffers whose quantized copy is fresh
        self.n_rows, self.n_outputs = 0, 0
        self.tiled_route: str | None = None  # the buffer of routes whose tables stand in scratch, a pair a tile

    def begin(self, n_rows: int, n_outputs: int) -> None:
        """Start the launches of a pass of up to so many rows and wanted outputs."""
        self.n_rows, self.n_outputs = n_rows, n_outputs
        self.launches, self.ops, self.quantized = [], [], set()

    # Addresses

    def at(self, buffer: Buffer | None) -> int:
        """Address of a buffer's first row; 0 for none."""
        return self.addresses[buffer.name] if buffer is not None else 0

    def rows_of(self, buffer: Buffer) -> int:
        """Rows of a buffer in this class."""
        return self.n_outputs if buffer.per_output else self.n_rows

    def count_at(self, buffer: Buffer) -> int:
        """Address of the number of rows a buffer has in a pass."""
        return self.batch + 4 * (Header.N_OUTPUTS if buffer.per_output else Header.N_ROWS)

    def vector(self, name: str | None) -> int:
        """Address of a float32 tensor; 0 for none."""
        return self.weights[name].planes[0] if name is not None else 0

    def state_at(self, state: StateLayer) -> int:
        """Address of a state of slot 0."""
        return self.states.addresses[state.index]

    def tile_of(self, n_rows: int) -> int:
        """Rows of activations a product takes at once."""
        return next((n for n in ROW_COUNTS if n >= n_rows), ROW_COUNTS[-1])

    def emit(
        self, kernel: Named, arguments: Sequence[int | float | Record], op: Op | Fusion, grid: tuple[int, int, int], *,
        n_threads: int = THREADS,
    ) -> None:  # fmt: skip
        """One more launch, records field by field; none where the grid is empty. `UnsupportedModelError` where it is
        larger than a card has."""
        if max(grid[1:]) > MAX_GRID:
            raise UnsupportedModelError("so many rows do not run on a card at once: use a smaller --batch-size")
        if 0 not in grid:
            values: list[int | float] = []
            for argument in arguments:
                values += argument if isinstance(argument, tuple) else (argument,)
            self.launches.append(GridLaunch(kernel.name, tuple(values), grid, n_threads))
            self.ops.append(op)

    # Quantized activations

    def outputs_of(self, out: Buffer) -> tuple[int, int]:
        """(floats, codes): where an op is to write a value, 0 for what nothing reads."""
        codes = self.addresses.get(out.name + ".q8", 0)
        return (self.at(out) if out.name in self._float_readers or not codes else 0), codes

    def codes_of(self, x: Buffer, op: Op) -> int:
        """Address of the quantized copy of `x`, made now if it is not fresh."""
        codes = self.addresses[x.name + ".q8"]
        if x.name not in self.quantized:
            self.quantize(codes, self.at(x), x, 1, op)
            self.quantized.add(x.name)
        return codes

    def quantize(self, codes: int, source: int, x: Buffer, parts: int, op: Op) -> None:
        """Quantize a buffer's rows, each as `parts` rows."""
        width, n_rows = x.width // parts, self.rows_of(x) * parts
        grid = (n_rows, -(-width // BLOCK // (THREADS // WARP)), 1)
        self.emit(norm.quantize, (codes, source, self.count_at(x), parts, width), op, grid)

    def is_few(self, op: MatMul) -> bool:
        """Whether a product is of few rows, or of a type that tensor cores have no kernel for."""
        kind = self.weights[op.weight].kind
        return kind is None or kind.is_float or self.rows_of(op.out) < TILED_ROWS

    def matrix(self, op: MatMul, *, is_second: bool = False) -> Matrix:
        """A product's result and weights."""
        first = (self.at(op.out), *self.weights[op.weight].planes)
        return Matrix(*first, self.vector(op.bias), op.first_row, op.out.width, int(is_second))

    def rotation_of(self, op: RotateStore) -> Rotation:
        """What kernels must know to rotate and store heads, but for the heads and the number of rows."""
        layer, cache = op.layer, self._cache.layers[op.layer.index]
        return Rotation(
            self.at(op.table), cache.keys, cache.values, cache.key_slot, cache.value_slot, cache.key_head,
            cache.value_head, self.places, self.slots, op.n_heads, layer.n_kv_heads if op.k is not None else 0,
            layer.k_dim, layer.v_dim, op.table.width // 2 if op.table is not None else 0, int(op.style == "neox"),
            self.vector(op.q_norm), self.vector(op.k_norm), float(op.eps),
        )  # fmt: skip


def _send_frequencies(card: Card, program: Program, addresses: Mapping[str, int]) -> None:
    """A frequency is kept as two float32 whose sum is the float64."""
    for op in program.ops:
        if isinstance(op, RopeTable):
            exact = np.array(op.frequencies, np.float64)
            high = exact.astype(np.float32)
            pairs = np.stack([high, (exact - high).astype(np.float32)], axis=1)
            card.upload(addresses[f"{op.out.name}.frequencies"], pairs)
            card.synchronize()
