"""Processes that compile kernels beside one another, since Numba compiles one at a time in each."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator


def usable_threads() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compile_in_processes(
    module: str, arguments: list[str], names: list[str], compile_here: Callable[[str], float]
) -> Iterator[tuple[str, float]]:
    """Compile kernels, dealt out in turn to as many processes as there are processors; yields each with its seconds as
    it is done. `module.main([*arguments, *names])` compiles its share and prints a line of name and seconds for each;
    `compile_here` compiles what no process did."""
    if len(names) <= 1:
        for name in names:
            yield name, compile_here(name)
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
            name, _, seconds = line.partition(" ")
            done.add(name)
            yield name, float(seconds)
    finally:
        for worker in workers:
            worker.kill()
            with worker:  # closes its pipe and waits for it
                pass
    for name in names:
        if name not in done:  # a worker could not start, or died: here the error is seen
            yield name, compile_here(name)


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
