"""What the machine can do at most: reading memory, and multiplying codes; `bench` sets its results beside it."""

from __future__ import annotations

from phobos.kernels.cpu.code.access import prefetch_far, prefetch_near, vload_i32, vload_u8, vstore_i32
from phobos.kernels.cpu.code.simd import I32, dot4, make_tile, zeros_i32
from phobos.kernels.cpu.declaration import Int, kernel

CHAINS = 12  # independent sums, enough to hide an instruction's latency
new_sums, get_sum, put_sum = make_tile(I32, CHAINS)


@kernel
def read_memory(out: Int, source: Int, n_bytes: Int, near: Int, far: Int, thread, n_threads):
    """Add up a region, each thread its share; `out` has a line a thread. Lines are asked for `near` and `far` bytes
    ahead, into the first and the second cache, as products do."""
    a, b, c, d = zeros_i32(), zeros_i32(), zeros_i32(), zeros_i32()
    n_lines = n_bytes // 256
    for i in range(n_lines * thread // n_threads, n_lines * (thread + 1) // n_threads):
        at = source + 256 * i
        for line in range(0, 256, 64):
            prefetch_near(at + near + line)
            prefetch_far(at + far + line)
        a, b = a + vload_i32(at), b + vload_i32(at + 64)
        c, d = c + vload_i32(at + 128), d + vload_i32(at + 192)
    vstore_i32(out + 64 * thread, (a + b) + (c + d))


@kernel
def multiply_codes(out: Int, source: Int, n_turns: Int, thread, n_threads):
    """`CHAINS` products of 64 codes, `n_turns` times on every thread; `out` has a line a thread."""
    sums = new_sums()
    for i in range(CHAINS):
        put_sum(sums, i, zeros_i32())
    codes, values = vload_u8(source), vload_u8(source + 64)
    for _ in range(n_turns):
        for i in range(CHAINS):
            put_sum(sums, i, dot4(get_sum(sums, i), codes, values))
    total = zeros_i32()
    for i in range(CHAINS):
        total = total + get_sum(sums, i)
    vstore_i32(out + 64 * thread, total)
