"""Atomics, the spin barrier and work counters of the team.

Source of the barrier: a central sense-reversing barrier (Mellor-Crummey and Scott 1991); the phase is a counter.
Addresses are of 8-byte words, each on a cache line of its own.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from phobos.kernels.cpu.code.simd import inlined

PATIENCE = 1000  # turns of a spin loop, some 50 microseconds, before the core is given away
_I64 = ir.IntType(64)


def _word(builder, address):
    return builder.inttoptr(address, _I64.as_pointer())


@intrinsic
def atomic_add(typingctx, address, value):
    """Add to a word; returns what it held."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", _word(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx, address):
    """Read a word."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_word(builder, args[0]), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_store(typingctx, address, value):
    """Write a word."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], _word(builder, args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def atomic_swap_if(typingctx, address, expected, value):
    """Write `value` if the word holds `expected`; true when it did."""

    def codegen(context, builder, signature, args):
        pair = builder.cmpxchg(_word(builder, args[0]), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typingctx):
    """Tell the core that this is a spin loop."""

    def codegen(context, builder, signature, args):
        if platform.machine() in ("x86_64", "AMD64"):
            name, operands = "llvm.x86.sse2.pause", []
        elif platform.machine() in ("aarch64", "arm64"):
            name, operands = "llvm.aarch64.hint", [ir.Constant(ir.IntType(32), 1)]
        else:
            return context.get_dummy_value()
        function_type = ir.FunctionType(ir.VoidType(), [o.type for o in operands])
        builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), operands)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def give_way(typingctx):
    """Let another thread have the core: whom this one waits for may need it."""

    def codegen(context, builder, signature, args):
        name = "SwitchToThread" if platform.system() == "Windows" else "sched_yield"
        function_type = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_step(typingctx, function, step, thread, n_threads):
    """Call the compiled kernel at an address."""

    def codegen(context, builder, signature, args):
        function_type = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I64])
        pointer = builder.inttoptr(args[0], function_type.as_pointer())
        builder.call(pointer, args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


@inlined
def wait_for_all(barrier, n_threads):
    """Return once all threads have come; `barrier` is the address of two words, 64 bytes apart: arrivals and phase."""
    if n_threads == 1:
        return
    phase = atomic_load(barrier + 64)
    if atomic_add(barrier, 1) == n_threads - 1:
        atomic_store(barrier, 0)
        atomic_store(barrier + 64, phase + 1)
    else:
        spins = 0
        while atomic_load(barrier + 64) == phase:
            spins += 1
            if spins < PATIENCE:
                pause()
            else:
                give_way()


@inlined
def take_work(counter, pass_number, n_items):
    """The next item of a step that no thread has taken in this pass, or -1 when none is left.

    `counter` holds the pass it was last used in above and the next item below, so it needs no resetting.
    """
    while True:
        held = atomic_load(counter)
        item = held & 0xFFFFFFFF if held >> 32 == pass_number else 0
        if item >= n_items:
            return -1
        if atomic_swap_if(counter, held, (pass_number << 32) + item + 1):
            return item
