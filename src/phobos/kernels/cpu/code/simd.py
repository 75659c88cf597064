"""Vector types for kernels, and the few instructions kernels are made of.

With `access.py` (loads and stores) and `sync.py` the only file that writes LLVM IR. A value of type `F32`,
`I32` or `U8` is one LLVM vector of 512 bits (16 floats, 16 integers, 64 bytes); LLVM splits it where registers are
narrower, so kernels are written once. Memory is addressed by plain integers: an `address` is a byte address.

Only `dot4`, `look_up` and the half-float conversions depend on the processor; which form they take is chosen from
`CPU` when a kernel is compiled. No kernel asks about the processor. Arithmetic is never reassociated or contracted, so
a kernel's result has one bit pattern.
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

from phobos.kernels.cpu.features import CPU

LANES = 16

# What a function that kernels are made of is declared with: it cannot raise, and only kernels call it.
inlined = njit(error_model="numpy", no_cpython_wrapper=True)
# The same, for a body of an unrolled loop that is too long for LLVM to inline several times by its own choice.
always_inlined = njit(error_model="numpy", no_cpython_wrapper=True, forceinline=True)

_I1, _I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
_FLOAT, _HALF = ir.FloatType(), ir.HalfType()


class Vector(types.Type):
    """A register of `count` elements of an LLVM type."""

    def __init__(self, name: str, element: ir.Type, count: int) -> None:
        self.llvm = ir.VectorType(element, count)
        super().__init__(name=name)


class Tile(types.Type):
    """`count` vectors that live in registers once the loops that index them are unrolled."""

    def __init__(self, vector: Vector, count: int) -> None:
        self.vector = vector
        self.count = count
        self.llvm = ir.ArrayType(vector.llvm, count)
        super().__init__(name=f"{vector.name}x{count}")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm.as_pointer())


F32 = Vector("F32", _FLOAT, LANES)
I32 = Vector("I32", _I32, LANES)
U8 = Vector("U8", _I8, 4 * LANES)


def pointer_to(builder, address, llvm_type):
    return builder.inttoptr(address, llvm_type.as_pointer())


def call_intrinsic(builder, name, result, *args):
    function_type = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


def filled(vector: ir.VectorType, value) -> ir.Constant:
    return ir.Constant(vector, [value] * vector.count)


def _broadcast(builder, scalar, vector: ir.VectorType):
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, _I32(0))
    return builder.shuffle_vector(first, undefined, filled(ir.VectorType(_I32, vector.count), 0))


# Making vectors


@intrinsic
def splat(typingctx, value):
    """A float in all lanes."""

    def codegen(context, builder, signature, args):
        return _broadcast(builder, args[0], F32.llvm)

    return F32(types.float32), codegen


@intrinsic
def splat_i32(typingctx, value):
    """An integer in all lanes."""

    def codegen(context, builder, signature, args):
        return _broadcast(builder, args[0], I32.llvm)

    return I32(types.int32), codegen


@intrinsic
def splat_bytes(typingctx, address):
    """The 4 bytes at an address, 16 times."""

    def codegen(context, builder, signature, args):
        word = builder.load(pointer_to(builder, args[0], _I32), align=1)
        return builder.bitcast(_broadcast(builder, word, I32.llvm), U8.llvm)

    return U8(types.int64), codegen


@intrinsic
def zeros(typingctx):
    """16 float zeros."""
    return F32(), lambda context, builder, signature, args: filled(F32.llvm, 0.0)


@intrinsic
def zeros_i32(typingctx):
    """16 integer zeros."""
    return I32(), lambda context, builder, signature, args: filled(I32.llvm, 0)


@intrinsic
def lane_numbers(typingctx):
    """0, 1, … 15."""
    return I32(), lambda context, builder, signature, args: ir.Constant(I32.llvm, list(range(LANES)))


# Arithmetic


def _make_binary(vector, emit):
    @intrinsic
    def binary(typingctx, a, b):
        return vector(vector, vector), lambda context, builder, signature, args: emit(builder, args[0], args[1])

    return binary


def _overload_operator(function, a, b, implementation):
    @overload(function)
    def choose(x, y):
        if x == a and y == b:
            return lambda x, y: implementation(x, y)  # noqa: PLW0108 - an overload takes plain functions only
        return None


for _operator, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _overload_operator(
        _operator, F32, F32, _make_binary(F32, lambda builder, a, b, name=_name: getattr(builder, name)(a, b))
    )
for _operator, _name in ((operator.add, "add"), (operator.sub, "sub"), (operator.mul, "mul")):
    _overload_operator(
        _operator, I32, I32, _make_binary(I32, lambda builder, a, b, name=_name: getattr(builder, name)(a, b))
    )
_overload_operator(operator.and_, U8, U8, _make_binary(U8, lambda builder, a, b: builder.and_(a, b)))
_overload_operator(operator.and_, I32, I32, _make_binary(I32, lambda builder, a, b: builder.and_(a, b)))
_overload_operator(operator.or_, U8, U8, _make_binary(U8, lambda builder, a, b: builder.or_(a, b)))

maximum = _make_binary(F32, lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))
minimum = _make_binary(F32, lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c, rounded once."""

    def codegen(context, builder, signature, args):
        return call_intrinsic(builder, "llvm.fma.v16f32", F32.llvm, *args)

    return F32(F32, F32, F32), codegen


def _make_unary(name, doc):
    @intrinsic
    def unary(typingctx, a):
        def codegen(context, builder, signature, args):
            return call_intrinsic(builder, f"llvm.{name}.v16f32", F32.llvm, args[0])

        return F32(F32), codegen

    unary.__doc__ = doc
    return unary


absolute = _make_unary("fabs", "Lane-wise absolute value.")
root = _make_unary("sqrt", "Lane-wise square root.")


@intrinsic
def to_float(typingctx, a):
    """Integers to floats."""
    return F32(I32), lambda context, builder, signature, args: builder.sitofp(args[0], F32.llvm)


@intrinsic
def round_to_int(typingctx, a):
    """Floats to the nearest integers, ties to even; they must fit."""

    def codegen(context, builder, signature, args):
        return builder.fptosi(call_intrinsic(builder, "llvm.rint.v16f32", F32.llvm, args[0]), I32.llvm)

    return I32(F32), codegen


@intrinsic
def as_float(typingctx, a):
    """The same bits, read as floats."""
    return F32(I32), lambda context, builder, signature, args: builder.bitcast(args[0], F32.llvm)


@intrinsic
def shift_left(typingctx, a, n):
    """Integers times 2**n."""

    def codegen(context, builder, signature, args):
        return builder.shl(args[0], _broadcast(builder, args[1], I32.llvm))

    return I32(I32, types.int32), codegen


@intrinsic
def shift_right(typingctx, a, n):
    """Integers of no sign >> n."""

    def codegen(context, builder, signature, args):
        return builder.lshr(args[0], _broadcast(builder, args[1], I32.llvm))

    return I32(I32, types.int32), codegen


@intrinsic
def where_less(typingctx, a, b, yes, no):
    """Lane-wise: yes where a < b (integers), else no."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.icmp_signed("<", args[0], args[1]), args[2], args[3])

    return F32(I32, I32, F32, F32), codegen


@intrinsic
def where_below(typingctx, a, b, yes, no):
    """Lane-wise: yes where a < b (floats), else no."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return F32(F32, F32, F32, F32), codegen


def _fold(builder, value, combine):
    """Halve a vector until one element is left: a fixed tree, so a fixed rounding."""
    count = value.type.count
    while count > 1:
        count //= 2
        mask = ir.VectorType(_I32, count)
        undefined = ir.Constant(value.type, ir.Undefined)
        low = builder.shuffle_vector(value, undefined, ir.Constant(mask, list(range(count))))
        high = builder.shuffle_vector(value, undefined, ir.Constant(mask, list(range(count, 2 * count))))
        value = combine(builder, low, high)
    return builder.extract_element(value, _I32(0))


@intrinsic
def sum_lanes(typingctx, a):
    """The sum of 16 floats, always added in the same tree."""

    def codegen(context, builder, signature, args):
        return _fold(builder, args[0], lambda b, x, y: b.fadd(x, y))

    return types.float32(F32), codegen


@intrinsic
def max_lanes(typingctx, a):
    """The largest of 16 floats."""

    def codegen(context, builder, signature, args):
        return _fold(builder, args[0], lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))

    return types.float32(F32), codegen


@intrinsic
def sum_lanes_i32(typingctx, a):
    """The sum of 16 integers."""

    def codegen(context, builder, signature, args):
        return _fold(builder, args[0], lambda b, x, y: b.add(x, y))

    return types.int32(I32), codegen


@intrinsic
def store_narrow_i8(typingctx, address, a):
    """Put 16 integers at an address as bytes; they must fit."""

    def codegen(context, builder, signature, args):
        narrow = builder.trunc(args[1], ir.VectorType(_I8, LANES))
        builder.store(narrow, pointer_to(builder, args[0], narrow.type), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, I32), codegen


# Bytes


@intrinsic
def low_bits(typingctx, a, mask):
    """Every byte & mask."""

    def codegen(context, builder, signature, args):
        return builder.and_(args[0], _broadcast(builder, builder.trunc(args[1], _I8), U8.llvm))

    return U8(U8, types.int64), codegen


@intrinsic
def shift_words_right(typingctx, a, n):
    """Every 32-bit word >> n (cheap everywhere; mask the bytes afterwards)."""

    def codegen(context, builder, signature, args):
        words = builder.bitcast(args[0], I32.llvm)
        count = _broadcast(builder, builder.trunc(args[1], _I32), I32.llvm)
        return builder.bitcast(builder.lshr(words, count), U8.llvm)

    return U8(U8, types.int64), codegen


@intrinsic
def shift_words_left(typingctx, a, n):
    """Every 32-bit word << n (mask the bytes afterwards)."""

    def codegen(context, builder, signature, args):
        words = builder.bitcast(args[0], I32.llvm)
        count = _broadcast(builder, builder.trunc(args[1], _I32), I32.llvm)
        return builder.bitcast(builder.shl(words, count), U8.llvm)

    return U8(U8, types.int64), codegen


@intrinsic
def spread_bit(typingctx, a, n):
    """Bit n of every 32-bit word, in all 32 bits of it."""

    def codegen(context, builder, signature, args):
        words = builder.bitcast(args[0], I32.llvm)
        count = builder.sub(_I32(31), builder.trunc(args[1], _I32))
        top = builder.shl(words, _broadcast(builder, count, I32.llvm))
        return builder.bitcast(builder.ashr(top, filled(I32.llvm, 31)), U8.llvm)

    return U8(U8, types.int64), codegen


@intrinsic
def dot4(typingctx, acc, unsigned, signed):
    """acc[i] += sum of unsigned[4i+j] * signed[4i+j] over j in 0..3, exactly, on every processor."""

    def codegen(context, builder, signature, args):
        return CPU.emit_dot4(builder, *args)

    return I32(I32, U8, U8), codegen


def make_lookup(entries: tuple[int, ...]):
    """`look_up(codes)`: each byte of `codes`, 0 to 15, replaced by that one of 16 unsigned entries."""

    @intrinsic
    def look_up(typingctx, codes):
        def codegen(context, builder, signature, args):
            table = ir.Constant(U8.llvm, [ir.Constant(_I8, entry) for entry in entries * 4])
            return CPU.emit_lookup(builder, table, args[0])

        return U8(U8), codegen

    return look_up


# Tiles


def make_tile(vector: Vector, count: int):
    """(new, get, put) of a tile type; indices must be constants once loops are unrolled."""
    tile = Tile(vector, count)

    @intrinsic
    def new(typingctx):
        return tile(), lambda context, builder, signature, args: cgutils.alloca_once(builder, tile.llvm)

    @intrinsic
    def get(typingctx, tile_value, index):
        def codegen(context, builder, signature, args):
            return builder.load(builder.gep(args[0], [_I64(0), args[1]]))

        return vector(tile, types.int64), codegen

    @intrinsic
    def put(typingctx, tile_value, index, value):
        def codegen(context, builder, signature, args):
            builder.store(args[2], builder.gep(args[0], [_I64(0), args[1]]))
            return context.get_dummy_value()

        return types.void(tile, types.int64, vector), codegen

    return new, get, put
