"""Processes that compile kernels beside one another, since Numba compiles one at a time in each."""

from __future__ import annotations

import base64
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Compiled:
    """A kernel's code, in as many pieces as its compiler makes, and the seconds it took; no pieces where the cache
    holds them."""

    name: str
    seconds: float
    pieces: tuple[bytes, ...] = ()

    def to_line(self) -> str:
        """As a worker prints it."""
        pieces = (base64.b64encode(piece).decode() for piece in self.pieces)
        return " ".join([self.name, f"{self.seconds:.3f}", *pieces])

    @classmethod
    def from_line(cls, line: str) -> Compiled:
        """The inverse of `to_line`."""
        name, seconds, *pieces = line.split(" ")
        return cls(name, float(seconds), tuple(map(base64.b64decode, pieces)))


def print_compiled(names: Sequence[str], compile_here: Callable[[str], Compiled]) -> None:
    """A worker's whole work."""
    for name in names:
        print(compile_here(name).to_line(), flush=True)


def usable_threads() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compile_in_processes(
    module: str, arguments: list[str], names: list[str], compile_here: Callable[[str], Compiled]
) -> Iterator[Compiled]:
    """Compile kernels, dealt out in turn to as many processes as there are processors; yields each as it is done.
    `module.main([*arguments, *names])` is a worker and calls `print_compiled`; `compile_here` compiles what no process
    did."""
    if len(names) <= 1:
        yield from map(compile_here, names)
        return
    n_workers = min(len(names), usable_threads())
    # Not -m: kernels must find this very module, under its own name, when they import it.
    command = [sys.executable, "-c", f"import {module} as c, sys; c.main(sys.argv[1:])", *arguments]
    workers = [
        subprocess.Popen([*command, *names[i::n_workers]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for i in range(n_workers)
    ]
    done = set()
    try:
        for line in _lines(workers):
            compiled = Compiled.from_line(line)
            done.add(compiled.name)
            yield compiled
    finally:
        for worker in workers:
            worker.kill()
            with worker:  # closes its pipe and waits for it
                pass
    for name in names:
        if name not in done:  # a worker could not start, or died: here the error is seen
            yield compile_here(name)


def _lines(workers: list[subprocess.Popen[bytes]]) -> Iterator[str]:
    """Lines of the workers' output as they come."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            assert worker.stdout is not None
            selector.register(worker.stdout, selectors.EVENT_READ, b"")
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                *lines, rest = (key.data + data).split(b"\n")
                if data:
                    selector.modify(key.fileobj, selectors.EVENT_READ, rest)
                for line in lines:
                    yield line.decode()
