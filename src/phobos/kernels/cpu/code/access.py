"""Loads and stores: scalars and vectors at byte addresses, half floats widened and narrowed on the way.

What no finite half holds is clamped when stored, so a cache never holds an infinity.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from phobos.kernels.cpu.code.simd import F32, I32, LANES, U8, Vector, call_intrinsic, filled, pointer_to
from phobos.kernels.cpu.features import CPU

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_FLOAT, _HALF = ir.FloatType(), ir.HalfType()

_SCALARS = {
    "f32": (types.float32, _FLOAT),
    "i32": (types.int32, _I32),
    "u32": (types.uint32, _I32),
    "i64": (types.int64, _I64),
    "u8": (types.uint8, _I8),
    "i8": (types.int8, _I8),
    "u16": (types.uint16, _I16),
}


def _make_load(result, llvm_type, doc):
    @intrinsic
    def load(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.load(pointer_to(builder, args[0], llvm_type), align=1)

        return result(types.int64), codegen

    load.__doc__ = doc
    return load


def _make_store(value_type, llvm_type, doc):
    @intrinsic
    def store(typingctx, address, value):
        def codegen(context, builder, signature, args):
            value = context.cast(builder, args[1], signature.args[1], value_type)
            builder.store(value, pointer_to(builder, args[0], llvm_type), align=1)
            return context.get_dummy_value()

        given = value if isinstance(value, Vector) else value_type
        return types.void(types.int64, given), codegen

    store.__doc__ = doc
    return store


load_f32, load_i32, load_u32, load_i64, load_u8, load_i8, load_u16 = (
    _make_load(*_SCALARS[name], f"The {name} at an address.")
    for name in ("f32", "i32", "u32", "i64", "u8", "i8", "u16")
)
store_f32, store_i32, store_u32, store_i64, store_u8, store_i8, store_u16 = (
    _make_store(*_SCALARS[name], f"Put a {name} at an address.")
    for name in ("f32", "i32", "u32", "i64", "u8", "i8", "u16")
)
vload = _make_load(F32, F32.llvm, "16 floats at an address.")
vload_i32 = _make_load(I32, I32.llvm, "16 integers at an address.")
vload_u8 = _make_load(U8, U8.llvm, "64 bytes at an address.")
vstore = _make_store(F32, F32.llvm, "Put 16 floats at an address.")
vstore_i32 = _make_store(I32, I32.llvm, "Put 16 integers at an address.")
vstore_u8 = _make_store(U8, U8.llvm, "Put 64 bytes at an address.")


def _widen_half(builder, bits):
    """16 halves as <16 x i16> to floats: by instruction where there is one, else by integer arithmetic (exact)."""
    if CPU.has_f16c:
        return builder.fpext(builder.bitcast(bits, ir.VectorType(_HALF, LANES)), F32.llvm)
    # Place exponent and mantissa in a float, then scale by 2**112: right for subnormals too. Infinities and NaNs do
    # not occur: weights are finite and cached keys and values are clamped when stored.
    wide = builder.zext(bits, I32.llvm)
    magnitude = builder.shl(builder.and_(wide, filled(I32.llvm, 0x7FFF)), filled(I32.llvm, 13))
    scaled = builder.fmul(builder.bitcast(magnitude, F32.llvm), filled(F32.llvm, 2.0**112))
    sign = builder.shl(builder.and_(wide, filled(I32.llvm, 0x8000)), filled(I32.llvm, 16))
    return builder.bitcast(builder.or_(builder.bitcast(scaled, I32.llvm), sign), F32.llvm)


@intrinsic
def vload_f16(typingctx, address):
    """16 halves at an address, as floats."""

    def codegen(context, builder, signature, args):
        bits = builder.load(pointer_to(builder, args[0], ir.VectorType(_I16, LANES)), align=1)
        return _widen_half(builder, bits)

    return F32(types.int64), codegen


@intrinsic
def vload_bf16(typingctx, address):
    """16 bfloat16 at an address, as floats."""

    def codegen(context, builder, signature, args):
        bits = builder.load(pointer_to(builder, args[0], ir.VectorType(_I16, LANES)), align=1)
        wide = builder.shl(builder.zext(bits, I32.llvm), filled(I32.llvm, 16))
        return builder.bitcast(wide, F32.llvm)

    return F32(types.int64), codegen


def _make_load_bytes(extend, convert, doc):
    @intrinsic
    def load(typingctx, address):
        def codegen(context, builder, signature, args):
            raw = builder.load(pointer_to(builder, args[0], ir.VectorType(_I8, LANES)), align=1)
            return getattr(builder, convert)(getattr(builder, extend)(raw, I32.llvm), F32.llvm)

        return F32(types.int64), codegen

    load.__doc__ = doc
    return load


vload_u8_f32 = _make_load_bytes("zext", "uitofp", "16 unsigned bytes at an address, as floats.")
vload_i8_f32 = _make_load_bytes("sext", "sitofp", "16 signed bytes at an address, as floats.")


@intrinsic
def vload_u8_i32(typingctx, address):
    """16 unsigned bytes at an address, as integers."""

    def codegen(context, builder, signature, args):
        raw = builder.load(pointer_to(builder, args[0], ir.VectorType(_I8, LANES)), align=1)
        return builder.zext(raw, I32.llvm)

    return I32(types.int64), codegen


def _narrow_half(builder, value):
    """16 floats, clamped to the finite halves, to <16 x i16>, rounded to nearest even."""
    value = call_intrinsic(builder, "llvm.minnum.v16f32", F32.llvm, value, filled(F32.llvm, 65504.0))
    value = call_intrinsic(builder, "llvm.maxnum.v16f32", F32.llvm, value, filled(F32.llvm, -65504.0))
    halves = ir.VectorType(_I16, LANES)
    if CPU.has_f16c:
        return builder.bitcast(builder.fptrunc(value, ir.VectorType(_HALF, LANES)), halves)
    bits = builder.bitcast(value, I32.llvm)
    sign = builder.and_(builder.lshr(bits, filled(I32.llvm, 16)), filled(I32.llvm, 0x8000))
    magnitude = builder.and_(bits, filled(I32.llvm, 0x7FFFFFFF))
    # Normal: rebias, add half an ulp (less one if even), drop 13 bits. Subnormal: adding 0.5 lets the float unit round.
    odd = builder.and_(builder.lshr(magnitude, filled(I32.llvm, 13)), filled(I32.llvm, 1))
    rebiased = builder.add(magnitude, builder.add(odd, filled(I32.llvm, (0xFFF - (112 << 23)) & 0xFFFFFFFF)))
    normal = builder.lshr(rebiased, filled(I32.llvm, 13))
    shifted = builder.fadd(builder.bitcast(magnitude, F32.llvm), filled(F32.llvm, 0.5))
    subnormal = builder.sub(builder.bitcast(shifted, I32.llvm), filled(I32.llvm, 0x3F000000))
    is_small = builder.icmp_unsigned("<", magnitude, filled(I32.llvm, 113 << 23))
    return builder.trunc(builder.or_(builder.select(is_small, subnormal, normal), sign), halves)


@intrinsic
def vstore_f16(typingctx, address, value):
    """Put 16 floats at an address as halves; what no finite half holds is clamped to the largest."""

    def codegen(context, builder, signature, args):
        halves = _narrow_half(builder, args[1])
        builder.store(halves, pointer_to(builder, args[0], halves.type), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, F32), codegen


@intrinsic
def store_f16(typingctx, address, value):
    """Put a float at an address as a half, clamped like all halves."""

    def codegen(context, builder, signature, args):
        lanes = builder.insert_element(filled(F32.llvm, 0.0), args[1], _I32(0))
        half = builder.extract_element(_narrow_half(builder, lanes), _I32(0))
        builder.store(half, pointer_to(builder, args[0], _I16), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


@intrinsic
def vscatter_f16(typingctx, address, stride, value):
    """Put 16 floats as halves, `stride` bytes apart."""

    def codegen(context, builder, signature, args):
        halves = _narrow_half(builder, args[2])
        address = args[0]
        for lane in range(LANES):
            builder.store(builder.extract_element(halves, _I32(lane)), pointer_to(builder, address, _I16), align=2)
            address = builder.add(address, args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, F32), codegen


def _make_prefetch(locality, doc):
    @intrinsic
    def prefetch(typingctx, address):
        def codegen(context, builder, signature, args):
            pointer = builder.inttoptr(args[0], _I8.as_pointer())
            call_intrinsic(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, _I32(0), _I32(locality), _I32(1))
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    prefetch.__doc__ = doc
    return prefetch


prefetch_near = _make_prefetch(3, "Bring the line at an address into the first cache.")
prefetch_far = _make_prefetch(2, "Bring the line at an address into the second cache.")


@intrinsic
def keep_own_frame(typingctx):
    """The function this stands in is called, not inlined as all others are: its loop has the registers to itself."""

    def codegen(context, builder, signature, args):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def keep_loads_apart(typingctx):
    """What is loaded before is loaded again after: so that an unrolled loop does not hold more than fits in registers.
    No instruction of the processor."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst", "singlethread")
        return context.get_dummy_value()

    return types.void(), codegen
