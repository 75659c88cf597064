"""What single PTX instructions compute, on NumPy values. Registers hold unsigned integers, floats or truth values; an
instruction's type says how their bits are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

Array = Any
_KINDS = {
    "f16": np.uint16, "f32": np.float32, "f64": np.float64, "pred": np.bool_,
    **{f"{letter}{n}": getattr(np, f"uint{n}") for letter in "ub" for n in (8, 16, 32, 64)},
    **{f"s{n}": getattr(np, f"int{n}") for n in (8, 16, 32, 64)},
}  # fmt: skip
_HOLDER = {np.dtype(f"i{n}"): np.dtype(f"u{max(n, 2)}") for n in (1, 2, 4, 8)}


def _bits_as(value: Array, kind: np.dtype) -> Array:
    """The same bits as another type; an integer is cut or filled up with zeros first."""
    value = np.asarray(value)
    if value.dtype == kind:
        return value
    if value.dtype.kind == "f" and kind.kind == "f":
        raise TypeError(f"a {value.dtype} where a {kind} is wanted")
    if value.dtype.itemsize != kind.itemsize:
        value = (value.view(f"u{value.dtype.itemsize}") if value.dtype.kind != "b" else value).astype(
            f"u{kind.itemsize}"
        )
    return value.view(kind)


class Types:
    """The types of an opcode: that of its operands, and of its result where it has two."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self.parts = parts
        named = [part for part in parts[1:] if part in _KINDS]
        self.name = named[-1]
        self.dtype = np.dtype(_KINDS[self.name])
        self.result = np.dtype(_KINDS[named[0]])
        self.is_signed = self.dtype.kind == "i"

    def cast(self, value: Array, index: int) -> Array:
        """The values of source operand `index` as the instruction takes them."""
        if self.parts[0] == "selp" and index == 2:
            return np.asarray(value, bool)
        if self.parts[0] in ("shl", "shr") and index == 1:
            return np.asarray(value).astype(np.uint64)
        if self.parts[0] == "bfi" and index > 1:
            return np.asarray(value).astype(np.int64)
        if self.parts[0] in ("dp4a", "prmt"):
            return _bits_as(value, np.dtype(np.uint32))
        return _bits_as(value, self.dtype)

    def widen(self, value: Array) -> Array:
        """A loaded value as a register holds it."""
        return hold(value)

    def narrow(self, value: Array) -> Array:
        """A register's value as it is stored."""
        return _bits_as(value, self.dtype)


types_of = cache(Types)


def hold(value: Array) -> Array:
    """A result as registers hold it: integers unsigned, signed ones of 8 bits widened by their sign."""
    value = np.asarray(value)
    if value.dtype.kind == "i":
        if value.dtype.itemsize == 1:
            value = value.astype(np.int64)
        return value.view(f"u{value.dtype.itemsize}")
    if value.dtype == np.uint8:
        return value.astype(np.uint16)
    return value


def _arithmetic(function: Callable[..., Array]) -> Callable[..., Array]:
    def compute(types: Types, *values: Array) -> Array:
        return hold(np.asarray(function(*values)).astype(types.dtype))

    return compute


def _multiply(types: Types, a: Array, b: Array) -> Array:
    if "wide" in types.parts:
        wide = np.dtype(f"{types.dtype.kind}{2 * types.dtype.itemsize}")
        return hold(a.astype(wide) * b.astype(wide))
    assert types.dtype.kind == "f" or "lo" in types.parts, types.parts
    return hold(a * b)


def _multiply_add(types: Types, a: Array, b: Array, c: Array) -> Array:
    if types.dtype == np.float32:
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    assert types.dtype.kind != "f" and "lo" in types.parts, types.parts
    return hold(a * b + c)


def _divide(types: Types, a: Array, b: Array) -> Array:
    if types.dtype.kind == "f":
        assert "rn" in types.parts, types.parts
        return a / b
    quotient = np.abs(a) // np.abs(b) if types.is_signed else a // b
    return hold(np.where((a < 0) != (b < 0), -quotient, quotient)) if types.is_signed else quotient


def _remainder(types: Types, a: Array, b: Array) -> Array:
    return hold(np.fmod(a, b))


def _shift_left(types: Types, value: Array, amount: Array) -> Array:
    bits = 8 * types.dtype.itemsize
    shifted = value << np.minimum(amount, np.uint64(bits - 1)).astype(types.dtype)
    return np.where(amount >= bits, types.dtype.type(0), shifted).astype(types.dtype)


def _shift_right(types: Types, value: Array, amount: Array) -> Array:
    bits = 8 * types.dtype.itemsize
    shifted = value >> np.minimum(amount, np.uint64(bits - 1)).astype(types.dtype)
    gone = (
        types.dtype.type(0) if not types.is_signed else np.where(value < 0, types.dtype.type(-1), types.dtype.type(0))
    )
    return hold(np.where(amount >= bits, gone, shifted).astype(types.dtype))


_COMPARISONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equ": lambda a, b: (a == b) | np.isnan(a) | np.isnan(b),
    "neu": lambda a, b: ~(a == b),
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
}


def _compare(types: Types, a: Array, b: Array) -> Array:
    comparison = types.parts[1]
    result = _COMPARISONS[comparison](a, b)
    if types.dtype.kind == "f" and comparison == "ne":
        result = result & ~np.isnan(a) & ~np.isnan(b)
    return result


def _convert(types: Types, value: Array) -> Array:
    """cvt.ROUNDING.RESULT.SOURCE"""
    names = [part for part in types.parts[1:] if part in _KINDS]
    if names[1] == "f16":
        value = value.view(np.float16)
    if names[0] == "f16":
        return value.astype(np.float16).view(np.uint16)
    rounding = types.parts[1]
    if value.dtype.kind == "f" and rounding in ("rni", "rzi", "rmi", "rpi"):
        value = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding](value)
    if types.result.kind in "iu" and value.dtype.kind in "iu" and types.result.itemsize < value.dtype.itemsize:
        value = value.view(f"u{value.dtype.itemsize}").astype(f"u{types.result.itemsize}").view(types.result)
    return hold(value.astype(types.result))


def _move(types: Types, value: Array) -> Array:
    return hold(value)


def _select(types: Types, a: Array, b: Array, chosen: Array) -> Array:
    return hold(np.where(chosen, a, b))


def _dot4(types: Types, a: Array, b: Array, c: Array) -> Array:
    """dp4a.ATYPE.BTYPE: four products of bytes, and an int32."""
    total = c.view(np.int32) if c.ndim else np.asarray(c).view(np.int32)
    for i in range(4):
        x, y = ((v >> np.uint32(8 * i)).astype(np.uint8) for v in (a, b))
        signed = [
            np.asarray(v).view(np.int8) if kind == "s32" else v
            for v, kind in zip((x, y), types.parts[1:3], strict=True)
        ]
        total = total + signed[0].astype(np.int32) * signed[1].astype(np.int32)
    return hold(total)


def _permute(types: Types, a: Array, b: Array, selector: Array) -> Array:
    whole = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    result = np.zeros(np.broadcast(a, b, selector).shape, np.uint32)
    for i in range(4):
        nibble = (selector >> np.uint32(4 * i)) & np.uint32(15)
        byte = (whole >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & np.uint64(0xFF)
        byte = np.where(nibble > 7, np.where(byte > 127, np.uint64(0xFF), np.uint64(0)), byte)
        result = result | (byte.astype(np.uint32) << np.uint32(8 * i))
    return result


def _insert_bits(types: Types, a: Array, b: Array, start: Array, length: Array) -> Array:
    kind = types.dtype.type
    ones = np.where(length >= 64, ~np.uint64(0), (np.uint64(1) << length.astype(np.uint64)) - np.uint64(1)).astype(kind)
    mask = ones << start.astype(kind)
    return (b & ~mask) | ((a << start.astype(kind)) & mask)


def _extract_bits(types: Types, a: Array, start: Array, length: Array) -> Array:
    assert not types.is_signed, types.parts
    ones = (np.uint64(1) << length.astype(np.uint64)) - np.uint64(1)
    return ((a.astype(np.uint64) >> start.astype(np.uint64)) & ones).astype(types.dtype)


def _negate(types: Types, value: Array) -> Array:
    return hold(-value)


def _complement(types: Types, value: Array) -> Array:
    return np.logical_not(value) if value.dtype == bool else ~value


OPERATIONS: Mapping[str, Callable[..., Array]] = {
    "mov": _move,
    "add": _arithmetic(np.add),
    "sub": _arithmetic(np.subtract),
    "mul": _multiply,
    "mad": _multiply_add,
    "fma": _multiply_add,
    "div": _divide,
    "rem": _remainder,
    "rcp": lambda types, value: types.dtype.type(1) / value,
    "sqrt": _arithmetic(np.sqrt),
    "abs": _arithmetic(np.abs),
    "neg": _negate,
    "not": _complement,
    "min": _arithmetic(np.fmin),
    "max": _arithmetic(np.fmax),
    "and": _arithmetic(np.bitwise_and),
    "or": _arithmetic(np.bitwise_or),
    "xor": _arithmetic(np.bitwise_xor),
    "shl": _shift_left,
    "shr": _shift_right,
    "setp": _compare,
    "selp": _select,
    "cvt": _convert,
    "cvta": _move,
    "dp4a": _dot4,
    "prmt": _permute,
    "bfi": _insert_bits,
    "bfe": _extract_bits,
}
