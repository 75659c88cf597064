"""What Numba lacks: memory by address, 8-bit dot products, permutes, bit casts. The only module here that writes LLVM
IR and PTX.

Addresses are int64, in global memory but for functions named `*_shared*` or `copy_*`; words are uint32. Loads named
`read_*` go past the coherent path: only for memory no thread writes while the kernel runs.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import cuda, types
from numba.cuda.extending import intrinsic

from phobos.kernels.cuda.layout import THREADS

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_F32 = ir.FloatType()
GLOBAL, SHARED = 1, 3  # NVVM's address spaces

#: A device function; always inlined, so that kernels are single functions.
device = cuda.jit(device=True, forceinline=True)


def _pointer(builder, address, kind, space=GLOBAL):
    return builder.inttoptr(address, kind.as_pointer(space))


@intrinsic
def load_f32(typingctx, address):
    """The float at an address."""

    def generate(context, builder, signature, args):
        return builder.load(_pointer(builder, args[0], _F32))

    return types.float32(types.int64), generate


@intrinsic
def load_i32(typingctx, address):
    """The int32 at an address, widened."""

    def generate(context, builder, signature, args):
        return builder.sext(builder.load(_pointer(builder, args[0], _I32)), _I64)

    return types.int64(types.int64), generate


def _make_narrow_load(kind, widen):
    @intrinsic
    def load(typingctx, address):
        def generate(context, builder, signature, args):
            return getattr(builder, widen)(builder.load(_pointer(builder, args[0], kind)), _I32)

        return (types.uint32 if widen == "zext" else types.int32)(types.int64), generate

    return load


load_u8 = _make_narrow_load(_I8, "zext")
load_i8 = _make_narrow_load(_I8, "sext")
load_u16 = _make_narrow_load(_I16, "zext")


@intrinsic
def load_u32(typingctx, address):
    """The word at an address."""

    def generate(context, builder, signature, args):
        return builder.load(_pointer(builder, args[0], _I32))

    return types.uint32(types.int64), generate


@intrinsic
def store_f32(typingctx, address, value):
    """Store a float."""

    def generate(context, builder, signature, args):
        builder.store(args[1], _pointer(builder, args[0], _F32))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@intrinsic
def store_i32(typingctx, address, value):
    """Store the low 32 bits of an int64."""

    def generate(context, builder, signature, args):
        builder.store(builder.trunc(args[1], _I32), _pointer(builder, args[0], _I32))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def store_i8(typingctx, address, value):
    """Store the low 8 bits of an int32."""

    def generate(context, builder, signature, args):
        builder.store(builder.trunc(args[1], _I8), _pointer(builder, args[0], _I8))
        return context.get_dummy_value()

    return types.void(types.int64, types.int32), generate


@intrinsic
def store_f16(typingctx, address, value):
    """Store a float rounded to a half."""

    def generate(context, builder, signature, args):
        half = builder.fptrunc(args[1], ir.HalfType())
        builder.store(builder.bitcast(half, _I16), _pointer(builder, args[0], _I16))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


def _make_assembly(text, constraints, result, *operands, side_effect=False):
    """An intrinsic of one PTX instruction; several results come as a tuple."""
    llvm_of = {types.uint32: _I32, types.int32: _I32, types.int64: _I64, types.float32: _F32, types.void: ir.VoidType()}
    several = isinstance(result, types.UniTuple)
    parts = [llvm_of[result.dtype]] * result.count if several else [llvm_of[result]]
    function = ir.FunctionType(
        ir.LiteralStructType(parts) if several else parts[0], [llvm_of[operand] for operand in operands]
    )
    signature = result(*operands)

    def generate(context, builder, signature, args):
        value = builder.call(ir.InlineAsm(function, text, constraints, side_effect=side_effect), args)
        if result is types.void:
            return context.get_dummy_value()
        if not several:
            return value
        values = [builder.extract_value(value, i) for i in range(result.count)]
        return context.make_tuple(builder, signature.return_type, values)

    return signature, generate


@intrinsic
def read_words(typingctx, address):
    """Four words from a multiple of 16, not kept in the first cache: for weights, which are read once."""
    return _make_assembly(
        "ld.global.nc.L1::no_allocate.v4.u32 {$0,$1,$2,$3}, [$4];",
        "=r,=r,=r,=r,l", types.UniTuple(types.uint32, 4), types.int64,
    )  # fmt: skip


@intrinsic
def read_two_words(typingctx, address):
    """Two words from a multiple of 8, not kept in the first cache."""
    return _make_assembly(
        "ld.global.nc.L1::no_allocate.v2.u32 {$0,$1}, [$2];", "=r,=r,l", types.UniTuple(types.uint32, 2), types.int64
    )


@intrinsic
def read_shared_words(typingctx, address):
    """Four words from a multiple of 16, kept in the first cache: for what neighbours read too."""
    return _make_assembly(
        "ld.global.nc.v4.u32 {$0,$1,$2,$3}, [$4];", "=r,=r,=r,=r,l", types.UniTuple(types.uint32, 4), types.int64
    )


@intrinsic
def read_floats(typingctx, address):
    """Four floats from a multiple of 16, kept in the first cache."""
    return _make_assembly(
        "ld.global.nc.v4.f32 {$0,$1,$2,$3}, [$4];", "=f,=f,=f,=f,l", types.UniTuple(types.float32, 4), types.int64
    )


@intrinsic
def read_two_floats(typingctx, address):
    """Two floats from a multiple of 8, kept in the first cache."""
    return _make_assembly(
        "ld.global.nc.v2.f32 {$0,$1}, [$2];", "=f,=f,l", types.UniTuple(types.float32, 2), types.int64
    )


@intrinsic
def dot4_unsigned(typingctx, total, codes, values):
    """total + the dot product of four unsigned by four signed bytes."""
    return _make_assembly(
        "dp4a.u32.s32 $0, $2, $3, $1;", "=r,r,r,r", types.int32, types.int32, types.uint32, types.uint32
    )


@intrinsic
def dot4_signed(typingctx, total, codes, values):
    """total + the dot product of four signed by four signed bytes."""
    return _make_assembly(
        "dp4a.s32.s32 $0, $2, $3, $1;", "=r,r,r,r", types.int32, types.int32, types.uint32, types.uint32
    )


def _make_matrix_product(shape, codes_type, n_weights, n_values):
    """Products of a warp's fragments: 16 rows of 8-bit codes by 8 columns of signed bytes, four int32 a lane."""
    operands = n_weights + n_values
    weights = ",".join(f"${4 + i}" for i in range(n_weights))
    values = ",".join(f"${4 + n_weights + i}" for i in range(n_values))
    zeros = ",".join(f"${4 + operands}" for _ in range(4))
    text = (
        f"mma.sync.aligned.{shape}.row.col.s32.{codes_type}.s8.s32 "
        f"{{$0,$1,$2,$3}}, {{{weights}}}, {{{values}}}, {{{zeros}}};"
    )
    constraints = ",".join(["=r"] * 4 + ["r"] * (operands + 1))
    kinds = (types.uint32,) * operands
    return _make_assembly(text, constraints, types.UniTuple(types.int32, 4), *kinds, types.int32, side_effect=True)


@intrinsic
def multiply_unsigned(typingctx, a, b, c, d, e, f, zero):
    """16 x 32 unsigned codes (four words a lane) by 32 x 8 signed values (two)."""
    return _make_matrix_product("m16n8k32", "u8", 4, 2)


@intrinsic
def multiply_signed(typingctx, a, b, c, d, e, f, zero):
    """16 x 32 signed codes (four words a lane) by 32 x 8 signed values (two)."""
    return _make_matrix_product("m16n8k32", "s8", 4, 2)


@intrinsic
def multiply_half(typingctx, a, b, c, zero):
    """16 x 16 signed codes (two words a lane) by 16 x 8 signed values (one)."""
    return _make_matrix_product("m16n8k16", "s8", 2, 1)


@intrinsic
def permute(typingctx, low, high, selector):
    """Four bytes chosen from eight by the low four nibbles of `selector`, each 0 to 7."""
    return _make_assembly(
        "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", types.uint32, types.uint32, types.uint32, types.uint32
    )


@intrinsic
def round_to_int(typingctx, value):
    """The nearest int32, halves to even."""
    return _make_assembly("cvt.rni.s32.f32 $0, $1;", "=r,f", types.int32, types.float32)


@intrinsic
def half_to_float(typingctx, bits):
    """The value of the half in the low 16 bits of a word."""

    def generate(context, builder, signature, args):
        half = builder.bitcast(builder.trunc(args[0], _I16), ir.HalfType())
        return builder.fpext(half, _F32)

    return types.float32(types.uint32), generate


@intrinsic
def word_as_float(typingctx, word):
    """The float with these bits."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], _F32)

    return types.float32(types.uint32), generate


# Shared memory


def make_shared_memory(n_bytes):
    """A function that gives the address of `n_bytes` of a block's shared memory, at a multiple of 128. They are not
    cleared."""

    @intrinsic
    def shared_memory(typingctx):
        def generate(context, builder, signature, args):
            kind = ir.ArrayType(_I8, n_bytes)
            name = builder.module.get_unique_name("shared_memory")
            memory = ir.GlobalVariable(builder.module, kind, name, SHARED)
            memory.align = 128
            memory.initializer = ir.Constant(kind, ir.Undefined)
            return builder.ptrtoint(memory, _I64)

        return types.int64(), generate

    return shared_memory


def _make_shared_load(kind, dtype, n):
    @intrinsic
    def load(typingctx, address):
        signature = types.UniTuple(dtype, n)(types.int64)

        def generate(context, builder, signature, args):
            vector = builder.load(_pointer(builder, args[0], ir.VectorType(kind, n), SHARED), align=4 * n)
            values = [builder.extract_element(vector, ir.Constant(_I32, i)) for i in range(n)]
            return context.make_tuple(builder, signature.return_type, values)

        return signature, generate

    return load


load_shared_words = _make_shared_load(_I32, types.uint32, 4)
load_shared_floats = _make_shared_load(_F32, types.float32, 4)


def _make_shared_access(kind, dtype):
    """Load and store of one value in shared memory."""

    @intrinsic
    def load(typingctx, address):
        def generate(context, builder, signature, args):
            return builder.load(_pointer(builder, args[0], kind, SHARED))

        return dtype(types.int64), generate

    @intrinsic
    def store(typingctx, address, value):
        def generate(context, builder, signature, args):
            builder.store(args[1], _pointer(builder, args[0], kind, SHARED))
            return context.get_dummy_value()

        return types.void(types.int64, dtype), generate

    return load, store


load_shared_word, store_shared_word = _make_shared_access(_I32, types.uint32)
load_shared_float, store_shared_float = _make_shared_access(_F32, types.float32)


@intrinsic
def store_shared_two_floats(typingctx, address, first, second):
    """Store two floats at a multiple of 8 of shared memory."""

    def generate(context, builder, signature, args):
        vector = ir.Constant(ir.VectorType(_F32, 2), ir.Undefined)
        for i in range(2):
            vector = builder.insert_element(vector, args[1 + i], ir.Constant(_I32, i))
        builder.store(vector, _pointer(builder, args[0], vector.type, SHARED), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.float32), generate


def _make_copy(text):
    return _make_assembly(
        text, "l,l,r,~{memory}", types.void, types.int64, types.int64, types.int32, side_effect=True
    )  # fmt: skip


@intrinsic
def copy_sixteen(typingctx, target, source, n_bytes):
    """Begin to copy 16 bytes of global memory, of which all but the first `n_bytes` are zeros and not read, to shared
    memory, past the first cache."""
    return _make_copy("cp.async.cg.shared.global [$0], [$1], 16, $2;")


@intrinsic
def copy_eight(typingctx, target, source, n_bytes):
    """As `copy_sixteen`, 8 bytes, through the first cache."""
    return _make_copy("cp.async.ca.shared.global [$0], [$1], 8, $2;")


@intrinsic
def close_copies(typingctx):
    """The copies a thread has begun since the last call are a group."""
    return _make_assembly("cp.async.commit_group;", "~{memory}", types.void, side_effect=True)


@intrinsic
def wait_for_copies(typingctx):
    """Wait until all groups of copies but the latest are done; for other threads' eyes a barrier must follow."""
    return _make_assembly("cp.async.wait_group 1;", "~{memory}", types.void, side_effect=True)


@intrinsic
def drain_copies(typingctx):
    """Wait until all copies of this thread are done."""
    return _make_assembly("cp.async.wait_group 0;", "~{memory}", types.void, side_effect=True)


# Between blocks of threads


@intrinsic
def add_one(typingctx, address):
    """Add 1 to a word of global memory, at once for all threads, and give what it was."""
    return _make_assembly(
        "atom.global.add.u32 $0, [$1], 1;", "=r,l,~{memory}", types.uint32, types.int64, side_effect=True
    )


@device
def arrives_last(counter, n, flag):
    """Whether this block of threads is the last of `n` to come here; what the others wrote before is then to be seen by
    plain loads. The counter, a word of global memory, is 0 before and after; `flag` is a word of shared memory. All
    threads of a block take part."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        is_last = add_one(counter) == np.uint32(n - 1)
        if is_last:
            store_i32(counter, np.int64(0))
        flag[0] = is_last
        cuda.threadfence()
    cuda.syncthreads()
    return flag[0]


@device
def place_of_thread():
    """(row, column) of this thread, where a thread does a value and the grid is x along a row, y by row."""
    return cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
