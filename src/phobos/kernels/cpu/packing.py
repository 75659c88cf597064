"""Fills the memory of weights while the rest of a load goes on: other kernels are loaded, the tokenizer is made.

Threads take slices of tensors in the order of the file, each from the file's mapping into its place by compiled code,
and let the file's pages go that they have read. So a load holds the packed weights and one slice a thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from phobos.gguf.grids import level_numbers
from phobos.gguf.quants import TABLE
from phobos.gguf.reader import GGUF
from phobos.kernels.cpu.compiling.compiler import ENTRY_TYPE, LoadedKernel, encode_record
from phobos.kernels.cpu.guards import guarded_copy
from phobos.kernels.cpu.layout import GROUP, round_up
from phobos.kernels.cpu.memory import Arena
from phobos.kernels.cpu.weights import Weight, matrix_shape, packer_of

SLICES_BYTES = 16 << 20  # packed at a time by all threads together: what they hold of the file
LEAST_SLICE_BYTES = 1 << 20


@dataclass(frozen=True)
class Slice:
    """Groups `first` to before `last` of a packed tensor; all of any other."""

    weight: Weight
    first: int = 0
    last: int = 0


def slice_bytes(n_threads: int) -> int:
    """Bytes a thread packs at a time."""
    return max(LEAST_SLICE_BYTES, SLICES_BYTES // n_threads)


class Packing:
    """The filling of `weights`, which lie in `arena`, by `n_threads` threads from when all packers have been given to
    `take`. A context manager: left early, it stops, and nothing is read or written any more."""

    def __init__(self, gguf: GGUF, weights: Mapping[str, Weight], arena: Arena, n_threads: int) -> None:
        self._gguf = gguf
        self._arena = arena
        self._n_bytes = sum(weight.n_bytes for weight in weights.values())
        self._missing = {name for weight in weights.values() if (name := packer_of(weight)) is not None}
        self._packers: dict[str, int] = {}
        self._slices = self._cut(weights.values(), slice_bytes(n_threads))
        self._next = threading.Lock()
        self._done: queue.SimpleQueue[tuple[str, int] | BaseException] = queue.SimpleQueue()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._work, name=f"phobos-pack-{i}", daemon=True) for i in range(n_threads)
        ]

    @property
    def packers(self) -> tuple[str, ...]:
        """Names of the kernels that are waited for."""
        return tuple(sorted(self._missing))

    def take(self, kernel: LoadedKernel) -> None:
        """One more kernel can run; with the last packer the threads begin."""
        if kernel.name in self._missing:
            self._packers[kernel.name] = kernel.address
            self._missing.remove(kernel.name)
            if not self._missing:
                self._start()

    def wait(self, report: Callable[[str, float], None]) -> None:
        """Until all is in place; `report(tensor, fraction)` is called as bytes are done. Raises what a thread met."""
        if not self._packers:
            self._start()  # vectors only
        done = 0
        while done < self._n_bytes:
            item = self._done.get()
            if isinstance(item, BaseException):
                raise item
            name, n_bytes = item
            done += n_bytes
            report(name, done / self._n_bytes)

    def __enter__(self) -> Packing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _cut(self, weights: Iterable[Weight], n_bytes: int) -> Iterator[Slice]:
        tensors = self._gguf.tensors
        for weight in sorted(weights, key=lambda weight: (tensors[weight.name].shard, tensors[weight.name].offset)):
            if weight.kind is None or weight.widened:
                yield Slice(weight)
                continue
            n_out, n_in = matrix_shape(self._gguf, weight.name)
            n_groups = round_up(n_out, GROUP) // GROUP
            step = max(1, n_bytes // (n_in // weight.kind.values * weight.kind.record_bytes))
            for first in range(0, n_groups, step):
                yield Slice(weight, first, min(first + step, n_groups))

    def _work(self) -> None:
        try:
            while not self._stopped:
                with self._next:
                    piece = next(self._slices, None)
                if piece is None:
                    return
                self._done.put((piece.weight.name, self._fill(piece)))
        except BaseException as error:
            self._done.put(error)

    def _fill(self, piece: Slice) -> int:
        """Put a slice into its place; returns its bytes there."""
        weight, gguf = piece.weight, self._gguf
        info = gguf.tensors[weight.name]
        if weight.kind is None:
            values = TABLE[info.type].dequantize(gguf.data(weight.name)).astype(np.float32)
            values = (values.reshape(matrix_shape(gguf, weight.name)).T if weight.transposed else values).ravel()
            self._arena.view(weight.address, values.nbytes)[:] = values.view(np.uint8)
            gguf.release(weight.name)
            return weight.n_bytes
        n_out, n_in = matrix_shape(gguf, weight.name)
        n_groups = round_up(n_out, GROUP) // GROUP
        first, last = (0, n_groups) if weight.widened else (piece.first, piece.last)
        source = guarded_copy(_widen(gguf, weight.name) if weight.widened else gguf.data(weight.name))
        book = weight.kind.codebook
        table = level_numbers(book).ctypes.data if book else 0
        function = self._packers[weight.kind.packer]
        arguments = (weight.address, source.ctypes.data, table, first, last, n_out, n_in // weight.kind.values)
        record = np.frombuffer(encode_record(function, 0, arguments), np.uint8).copy()
        ENTRY_TYPE(function)(record.ctypes.data, 0, 1)
        row_bytes = info.n_bytes // n_out
        gguf.release(weight.name, row_bytes * GROUP * first, row_bytes * min(GROUP * last, n_out))
        return weight.n_bytes // n_groups * (last - first)


def _widen(gguf: GGUF, name: str) -> np.ndarray:
    values = TABLE[gguf.tensors[name].type].dequantize(gguf.data(name))
    return np.clip(values, -65504, 65504).astype(np.float16).view(np.uint8).ravel()
