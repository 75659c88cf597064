"""The machine that runs compiled kernels in the tests: what a card leaves undefined is an error, branches meet again,
barriers hold, and a matrix instruction is the product of its fragments."""

from __future__ import annotations

import numpy as np
import pytest

from ptx.machine import Machine, Memory
from ptx.matrix import multiply_fragments
from ptx.text import parse_ptx

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .shared .align 4 .b8 space[512];
.visible .entry k(
    .param .u64 k_param_0
)
{
    .reg .pred %p<4>;
    ld.param.u64 	%rd1, [k_param_0];
    mov.u32 	%r1, %tid.x;
    mul.wide.u32 	%rd2, %r1, 4;
    add.s64 	%rd3, %rd1, %rd2;
"""


def run(body: str, memory: Memory, address: int, n_threads: int = 64, n_blocks: int = 2) -> None:
    Machine(memory).launch(parse_ptx(HEAD + body + "\n}\n"), (n_blocks, 1, 1), n_threads, [address])


def floats(memory: Memory, address: int, n: int) -> np.ndarray:
    return memory.view(address, 4 * n).view(np.uint32)


def test_memory_outside_of_allocations_is_an_error() -> None:
    memory = Memory(1 << 16)
    address = memory.allocate(256)
    run("st.global.u32 	[%rd3], %r1;\n ret;", memory, address)
    assert np.array_equal(floats(memory, address, 64), np.arange(64))
    with pytest.raises(AssertionError, match="outside of any allocation"):
        run("st.global.u32 	[%rd3+16], %r1;\n ret;", memory, address)
    with pytest.raises(AssertionError, match="not aligned"):
        run("ld.global.u32 	%r2, [%rd3+2];\n ret;", memory, address)
    with pytest.raises(AssertionError, match="outside of shared memory"):
        run("st.shared.u32 	[%rd2+320], %r1;\n ret;", memory, address)
    memory.free(address)
    with pytest.raises(AssertionError, match="outside of any allocation"):
        run("ld.global.u32 	%r2, [%rd3];\n ret;", memory, address)


BRANCHES = """
    and.b32 	%r2, %r1, 1;
    setp.eq.s32 	%p1, %r2, 0;
    @%p1 bra 	$L__BB0_2;
    mov.u32 	%r3, 100;
    bra.uni 	$L__BB0_3;
$L__BB0_2:
    mov.u32 	%r3, 200;
$L__BB0_3:
    shfl.sync.bfly.b32 	%r4|%p2, %r3, 1, 31, -1;
    st.global.u32 	[%rd3], %r4;
    ret;
"""


def test_branches_meet_again_and_shuffles_need_all_lanes() -> None:
    memory = Memory(1 << 16)
    address = memory.allocate(256)
    run(BRANCHES, memory, address)
    assert np.array_equal(floats(memory, address, 64), np.tile([100, 200], 32))
    parted = BRANCHES.replace(
        "mov.u32 	%r3, 100;", "mov.u32 	%r3, 100;\n shfl.sync.bfly.b32 	%r4|%p2, %r3, 1, 31, -1;"
    )
    with pytest.raises(AssertionError, match="not all lanes take part"):
        run(parted, memory, address)


MIRRORED = """
    st.shared.u32 	[%rd2], %r1;
    bar.sync 	0;
    mov.u32 	%r5, 63;
    sub.s32 	%r6, %r5, %r1;
    mul.wide.u32 	%rd5, %r6, 4;
    ld.shared.u32 	%r7, [%rd5];
    st.global.u32 	[%rd3], %r7;
    ret;
"""


def test_a_barrier_holds_the_threads_of_its_block() -> None:
    """Each thread writes its number, then reads that of the thread at the other end."""
    memory = Memory(1 << 16)
    address = memory.allocate(256)
    run(MIRRORED, memory, address)
    assert np.array_equal(floats(memory, address, 64), np.arange(64)[::-1])


def test_warps_that_share_a_word_with_no_barrier_between_are_an_error() -> None:
    memory = Memory(1 << 16)
    address = memory.allocate(256)
    with pytest.raises(AssertionError, match="is read that another warp wrote with no barrier"):
        run(MIRRORED.replace("bar.sync 	0;", ""), memory, address)
    again = MIRRORED.replace("ret;", "st.shared.u32 	[%rd2], %r7;\n ret;")
    with pytest.raises(AssertionError, match="is written that another warp used with no barrier"):
        run(again, memory, address)
    run(again.replace("st.global", "bar.sync 	0;\n st.global"), memory, address)
    with pytest.raises(AssertionError, match="two warps write a word at once"):
        run("st.shared.u32 	[space], %r1;\n ret;", memory, address)


COPIED = """
    cp.async.ca.shared.global [%rd2], [%rd3], 4, %r8;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.u32 	%r7, [%rd2];
    add.u32 	%r7, %r7, 1;
    st.global.u32 	[%rd3], %r7;
    ret;
"""


def test_asynchronous_copies_are_there_once_they_are_waited_for() -> None:
    """The last threads copy nothing, which is zeros; a group too few waited for is an error."""
    memory = Memory(1 << 16)
    address = memory.allocate(256)
    before = np.arange(64, dtype=np.uint32) + 7
    sizes = "setp.lt.u32 	%p1, %r1, 60;\n selp.b32 	%r8, 4, 0, %p1;\n"
    memory.view(address, 256).view(np.uint32)[:] = before
    run(sizes + COPIED, memory, address, n_blocks=1)
    assert np.array_equal(floats(memory, address, 64), np.where(np.arange(64) < 60, before + 1, 1))
    for wrong in (COPIED.replace("wait_group 0", "wait_group 1"), COPIED.replace("cp.async.commit_group;", "")):
        with pytest.raises(AssertionError, match="touched that a copy is to bring"):
            run(sizes + wrong, memory, address, n_blocks=1)


@pytest.mark.parametrize(
    ("shape", "depth", "kind"), [("m16n8k32", 32, "u8"), ("m16n8k32", 32, "s8"), ("m16n8k16", 16, "s8")]
)
def test_fragments_of_a_matrix_product(shape: str, depth: int, kind: str) -> None:
    """Fragments gathered lane by lane from whole matrices give the whole product's fragments."""
    draw = np.random.default_rng(1)
    dtype = np.int8 if kind == "s8" else np.uint8
    a = draw.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (16, depth)).astype(dtype)
    b = draw.integers(-128, 127, (depth, 8)).astype(np.int8)

    def word(values: np.ndarray) -> int:
        return int.from_bytes(values.astype(values.dtype).tobytes(), "little")

    lanes = [(lane // 4, 4 * (lane % 4)) for lane in range(32)]
    left = [
        np.array([[word(a[g + 8 * (i % 2), k + 16 * (i // 2) :][:4]) for g, k in lanes]], np.uint32)
        for i in range(depth // 8)
    ]
    right = [np.array([[word(b[k + 16 * i :, g][:4]) for g, k in lanes]], np.uint32) for i in range(depth // 16)]
    zero = [np.zeros((1, 32), np.uint32)] * 4
    parts = ("mma", "sync", "aligned", shape, "row", "col", "s32", kind, "s8", "s32")
    found = multiply_fragments(parts, left, right, zero)
    whole = a.astype(np.int32) @ b.astype(np.int32)
    for i, values in enumerate(found):
        want = [whole[g + 8 * (i // 2), k // 2 + i % 2] for g, k in lanes]
        assert np.array_equal(values.view(np.int32)[0], want)
