"""The persistent team of threads that runs a step program.

The caller is thread 0; the others are Python threads inside compiled code that has released the GIL. After a pass a
worker waits there for `PARK_AFTER_S`, as the next one usually follows, and offers its core to others meanwhile; then it
parks on a semaphore, so an idle engine uses no processor. `Team` is used by one thread, the engine's.
"""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np

from phobos.kernels.cpu.compiling.compiler import ENTRY_TYPE, encode_record, load_kernels
from phobos.kernels.cpu.layout import CONTROL_WORDS, FIRST_ARGUMENT, Control
from phobos.kernels.cpu.names import run

KERNELS = (run.run_steps.name, run.serve.name, run.announce.name, run.park.name)
PARK_AFTER_S = 0.003  # more than lies between two passes: who parks needs the interpreter to come back
_TRIAL_TURNS, _TRIALS = 2000, 5


class Team:
    """`n_threads` threads, the caller included, for the step records at `steps`."""

    def __init__(self, n_threads: int, steps: int, n_steps: int) -> None:
        if not 1 <= n_threads <= CONTROL_WORDS // 8 - 8:
            raise ValueError(f"a team of {n_threads} threads")
        self.n_threads = n_threads
        self._control = np.zeros(CONTROL_WORDS, np.int64)
        self._steps, self._n_steps = steps, n_steps
        addresses = load_kernels(KERNELS)
        self._run_steps = ENTRY_TYPE(addresses[run.run_steps.name])
        self._serve = ENTRY_TYPE(addresses[run.serve.name])
        self._announce = ENTRY_TYPE(addresses[run.announce.name])
        self._park = ENTRY_TYPE(addresses[run.park.name])
        self._record = ctypes.create_string_buffer(encode_record(0, 0, [self._control.ctypes.data]))
        self._record_address = ctypes.addressof(self._record)
        self._announcement = np.frombuffer(encode_record(0, 0, [self._control.ctypes.data, 0, 0]), np.int64).copy()
        self._announcement_address = self._announcement.ctypes.data
        self._wake = [threading.Semaphore(0) for _ in range(n_threads)]
        self._closed = False
        self._control[Control.TURNS] = self._count_turns()
        self._workers = [
            threading.Thread(target=self._work, args=(i,), name=f"phobos-kernel-{i}", daemon=True)
            for i in range(1, n_threads)
        ]
        for worker in self._workers:
            worker.start()

    def _count_turns(self) -> int:
        """Turns of a worker's loop in `PARK_AFTER_S`: how long a processor pauses differs tenfold among models."""
        self._control[Control.TURNS] = _TRIAL_TURNS
        times_s = []
        for _ in range(_TRIALS):
            began_s = time.perf_counter()
            self._serve(self._record_address, 0, self.n_threads)  # no pass is announced yet
            times_s.append(time.perf_counter() - began_s)
        return max(_TRIAL_TURNS, round(_TRIAL_TURNS * PARK_AFTER_S / min(times_s)))

    def run(self, steps: int | None = None, n_steps: int | None = None) -> None:
        """One pass over the steps, or over these; the GIL is released while it runs."""
        self._announcement[FIRST_ARGUMENT + 1 : FIRST_ARGUMENT + 3] = (
            self._steps if steps is None else steps,
            self._n_steps if n_steps is None else n_steps,
        )
        self._announce(self._announcement_address, 0, self.n_threads)
        for thread in range(1, self.n_threads):
            if self._control[Control.WAKES + 8 * thread]:
                self._wake[thread].release()
        self._run_steps(self._record_address, 0, self.n_threads)

    def _work(self, thread: int) -> None:
        """A worker's life. Nothing here leans on the interpreter's lock: `run.py` says why no pass is missed."""
        while not self._closed:
            self._serve(self._record_address, thread, self.n_threads)
            self._park(self._record_address, thread, self.n_threads)
            if self._control[Control.SLEEPS + 8 * thread] and not self._closed:
                self._wake[thread].acquire()

    def close(self) -> None:
        """Stop the workers; twice is fine."""
        self._closed = True
        for semaphore in self._wake:
            semaphore.release()
        for worker in self._workers:
            worker.join()
        self._workers.clear()
