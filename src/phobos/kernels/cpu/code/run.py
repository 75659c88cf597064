"""The team's loop: for each step, wait if it says so, then do my share.

`run_steps` is the caller's part of a pass. `serve` is what a worker sits in: it runs each pass the caller announces and
returns, to be parked, when none has come for a while.

Order of memory. `announce` writes what the pass is and then its number, by a releasing store; a worker reads the number
by an acquiring load, and then what the pass is. The caller looks for parked workers after its store, a worker looks for
a pass after it has written that it parks, all of it sequentially consistent: so one of the two sees the other.
"""

from __future__ import annotations

from phobos.kernels.cpu.code.access import load_i64, store_i64
from phobos.kernels.cpu.code.simd import inlined
from phobos.kernels.cpu.code.sync import (
    atomic_load,
    atomic_store,
    atomic_swap_if,
    call_step,
    give_way,
    pause,
    wait_for_all,
)
from phobos.kernels.cpu.declaration import Int, kernel
from phobos.kernels.cpu.layout import RECORD_WORDS, WAIT_FLAG, Control

WAY_EVERY = 64  # turns of a waiting worker, about a microsecond, between offers of its core to others
_RECORD_BYTES = 8 * RECORD_WORDS

_PASS, _STEPS, _N_STEPS, _BARRIER = 8 * Control.PASS, 8 * Control.STEPS, 8 * Control.N_STEPS, 8 * Control.BARRIER
_SEEN, _TURNS = 8 * Control.SEEN, 8 * Control.TURNS
_PARKED, _WAKES, _SLEEPS = 8 * Control.PARKED, 8 * Control.WAKES, 8 * Control.SLEEPS


@inlined
def _run(control, thread, n_threads):
    steps, n_steps = load_i64(control + _STEPS), load_i64(control + _N_STEPS)
    for i in range(n_steps):
        record = steps + i * _RECORD_BYTES
        if load_i64(record + 8) & WAIT_FLAG:
            wait_for_all(control + _BARRIER, n_threads)
        call_step(load_i64(record), record, thread, n_threads)
    wait_for_all(control + _BARRIER, n_threads)


@kernel
def announce(control: Int, steps: Int, n_steps: Int, thread, n_threads):
    """Announce a pass over these steps; `WAKES` then says which workers the caller has to wake."""
    store_i64(control + _STEPS, steps)
    store_i64(control + _N_STEPS, n_steps)
    atomic_store(control + _PASS, load_i64(control + _PASS) + 1)
    for worker in range(1, n_threads):
        wakes = 1 if atomic_swap_if(control + _PARKED + 64 * worker, 1, 0) else 0
        store_i64(control + _WAKES + 64 * worker, wakes)


@kernel
def park(control: Int, thread, n_threads):
    """A worker parks unless a pass has come; `SLEEPS` then says whether it has to wait: for the next pass, or for the
    wake-up that is on its way already."""
    parked = control + _PARKED + 64 * thread
    atomic_store(parked, 1)
    sleeps = 1
    if atomic_load(control + _PASS) != load_i64(control + _SEEN + 64 * thread):
        sleeps = 0 if atomic_swap_if(parked, 1, 0) else 1
    store_i64(control + _SLEEPS + 64 * thread, sleeps)


@kernel
def run_steps(control: Int, thread, n_threads):
    """One announced pass, as the calling thread: does its share, returns when all are done."""
    _run(control, thread, n_threads)


@kernel
def serve(control: Int, thread, n_threads):
    """A worker: run passes as they are announced; return after `TURNS` turns without one. `SEEN` keeps the last one."""
    seen_at = control + _SEEN + 64 * thread
    seen = load_i64(seen_at)
    idle = 0
    while idle < load_i64(control + _TURNS):
        announced = atomic_load(control + _PASS)
        if announced == seen:
            idle += 1
            if idle % WAY_EVERY:
                pause()
            else:
                give_way()
        else:
            seen = announced
            store_i64(seen_at, seen)
            _run(control, thread, n_threads)
            idle = 0
