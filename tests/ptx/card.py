"""A card made of `ptx_machine.py`: the CUDA backend on it runs the compiled code of every kernel, without a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phobos.kernels.cuda.card import GridLaunch
from phobos.kernels.cuda.compiler import CompiledKernel
from ptx.machine import Machine, Memory, Traffic
from ptx.text import Entry, parse_ptx

TARGET = (8, 0)


class PtxCard:
    """See `phobos.kernels.cuda.card.Card`. With `counts`, `traffic` holds what each kernel moved."""

    def __init__(self, n_bytes: int = 64 << 20, *, counts: bool = False) -> None:
        self.name = "PTX machine"
        self.target = TARGET
        self.bandwidth_gbs: float | None = None
        self.bus_id: str | None = None
        self.memory = Memory(n_bytes)
        self.traffic: dict[str, Traffic] = {}
        self._counts = counts
        self._entries: dict[str, Entry] = {}

    def memory_info(self) -> tuple[int, int]:
        total = len(self.memory.data) + (1 << 30)  # as if a driver had its share
        return total - self.memory.n_held, total

    def allocate(self, n_bytes: int) -> int:
        return self.memory.allocate(n_bytes)

    def host_memory(self, n_bytes: int) -> np.ndarray:
        return np.zeros(n_bytes, np.uint8)

    def upload(self, address: int, data: np.ndarray) -> None:
        self.memory.view(address, data.nbytes)[:] = data.reshape(-1).view(np.uint8)

    def download(self, address: int, data: np.ndarray) -> None:
        data.reshape(-1).view(np.uint8)[:] = self.memory.view(address, data.nbytes)

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        self.memory.view(target, n_bytes)[:] = self.memory.view(source, n_bytes)

    def load(self, kernels: Mapping[str, CompiledKernel]) -> None:
        self._entries |= {name: parse_ptx(kernel.ptx) for name, kernel in kernels.items()}

    def record(self, launches: Sequence[GridLaunch]) -> Any:
        return tuple(launches)

    def replay(self, recording: Any) -> None:
        for launch in recording:
            traffic = self.traffic.setdefault(launch.kernel, Traffic()) if self._counts else None
            machine = Machine(self.memory, traffic)
            machine.launch(self._entries[launch.kernel], launch.grid, launch.n_threads, launch.arguments)

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass
