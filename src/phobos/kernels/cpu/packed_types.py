"""The table of packed weight types: one row a type of the file, and where the parts of its record lie. No Numba here.

Sixteen output rows form a *group*; row r of it lies in lane r of every vector. A group is a run of *records*, one for
each block of the file's type (32 or 256 values of all 16 rows). The parts of a record lie in the order in which
products read them, since few processors follow streams that jump: of 256 values scales, high bits, then the other code
bytes; of fewer the code bytes, then scales. Code bytes are the file's own, transposed by 32-bit words: vector v holds
word v of each row's block. So packing moves words, and such a packed type is at most 4% larger than the file's. Types
whose codes name points of a codebook, or several values at once, are packed as the levels of single values, two to four
bits each, which is larger by the factor beside their rows.

A row states the parts of its record in order, in bytes; `code/types/FAMILY.py` says how they are filled and read, and
takes their places from here. The row is here and not there because a warm start reads it and must not import Numba.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.layout import GROUP, HEADER_WORDS, READ_AHEAD, round_up

_HALF, _BYTE, _WORD = 2 * GROUP, GROUP, 4 * GROUP  # of each row of a group


@dataclass(frozen=True)
class PackedType:
    """A packed weight type: `name` is that of the kernels that read it, `family` the file that knows it, `values`
    inputs a record, `block` inputs that share a scale, `record` its parts and their bytes, `packer` the kernel that
    makes it of a file's rows; `codebook`, where there is one, names the points that its packer looks up."""

    name: str
    family: str
    values: int
    block: int
    record: tuple[tuple[str, int], ...]
    packer: str
    codebook: str = ""

    @property
    def record_bytes(self) -> int:
        """Bytes of one group's record."""
        return sum(n_bytes for _, n_bytes in self.record)

    def places(self, *parts: str) -> tuple[int, ...]:
        """Where parts of the record begin."""
        names = [name for name, _ in self.record]
        return tuple(sum(n_bytes for _, n_bytes in self.record[: names.index(part)]) for part in parts)


def _row(
    name: str, family: str, values: int, block: int, record: Mapping[str, int], *, packer: str = "", codebook: str = ""
) -> PackedType:
    return PackedType(name, family, values, block, tuple(record.items()), f"pack:pack_{packer or name}", codebook)


def _codes(n_bits: int, values: int) -> int:
    """Bytes of a record's codes."""
    return n_bits * values // 8 * GROUP


_Q4_0 = {"codes": _codes(4, 32), "scale": _HALF}
_Q4_1 = {**_Q4_0, "minimum": _HALF}
_Q5_0 = {"codes": _codes(4, 32), "high": _WORD, "scale": _HALF}
_Q5_1 = {**_Q5_0, "minimum": _HALF}
_Q2_K = {"scale": _HALF, "minimum": _HALF, "scales": 16 * _BYTE, "codes": _codes(2, 256)}
_Q3_K = {"scale": _HALF, "scales": 16 * _BYTE, "high": _codes(1, 256), "codes": _codes(2, 256)}
_K_SCALES = {"scale": _HALF, "minimum": _HALF, "scales": 8 * _BYTE, "minimums": 8 * _BYTE}
_Q6_K_HALVES = {
    f"{half} {part}": _codes(n, 128) for half in ("first", "second") for part, n in (("high", 2), ("codes", 4))
}
_Q6_K = {"scale": _HALF, "scales": 16 * _BYTE, **_Q6_K_HALVES}
_IQ4_XS = {"scale": _HALF, "scales": 8 * _BYTE, "codes": _codes(4, 256)}
_TERNARY = {"scale": _HALF, "codes": _codes(2, 256)}
_IQ1_S = {"scale": _HALF, "scales": 8 * _BYTE, "codes": _codes(2, 256)}
_IQ1_M = {"scale": _HALF, "scales": 16 * _BYTE, "up": _WORD, "codes": _codes(2, 256)}
_IQ2_XXS = {"scale": _HALF, "scales": 8 * _BYTE, "high": _codes(1, 256), "codes": _codes(2, 256)}

PACKED: dict[GGMLType, PackedType] = {
    GGMLType.Q8_0: _row("q8_0", "plain", 32, 32, {"codes": _codes(8, 32), "scale": _HALF}),
    GGMLType.Q4_0: _row("q4_0", "plain", 32, 32, _Q4_0),
    GGMLType.Q4_1: _row("q4_1", "plain", 32, 32, _Q4_1),
    GGMLType.Q5_0: _row("q5_0", "plain", 32, 32, _Q5_0),
    GGMLType.Q5_1: _row("q5_1", "plain", 32, 32, _Q5_1),
    GGMLType.Q2_K: _row("q2_k", "k_quants", 256, 16, _Q2_K),
    GGMLType.Q3_K: _row("q3_k", "k_quants", 256, 16, _Q3_K),
    GGMLType.Q4_K: _row("q4_k", "k_quants", 256, 32, {**_K_SCALES, "codes": _codes(4, 256)}),
    GGMLType.Q5_K: _row("q5_k", "k_quants", 256, 32, {**_K_SCALES, "high": _codes(1, 256), "codes": _codes(4, 256)}),
    GGMLType.Q6_K: _row("q6_k", "k_quants", 256, 16, _Q6_K),
    GGMLType.IQ4_NL: _row("iq4_nl", "tables", 32, 32, _Q4_0),
    GGMLType.IQ4_XS: _row("iq4_xs", "tables", 256, 32, _IQ4_XS),
    GGMLType.MXFP4: _row("mxfp4", "tables", 32, 32, {"codes": _codes(4, 32), "exponent": _BYTE}),
    GGMLType.NVFP4: _row("nvfp4", "tables", 64, 16, {"codes": _codes(4, 64), "scales": 4 * _BYTE}),
    GGMLType.Q1_0: _row("q1_0", "low_bits", 128, 32, {"codes": _codes(1, 128), "scale": _HALF}),
    GGMLType.Q2_0: _row("q2_0", "low_bits", 64, 32, {"codes": _codes(2, 64), "scale": _HALF}),
    GGMLType.TQ2_0: _row("tq2_0", "low_bits", 256, 32, _TERNARY),
    GGMLType.TQ1_0: _row("tq2_0", "low_bits", 256, 32, _TERNARY, packer="tq1_0"),  # 1.22 of the file's bytes
    GGMLType.IQ1_S: _row("iq1_s", "iq1", 256, 32, _IQ1_S, codebook="iq1"),  # 1.48
    GGMLType.IQ1_M: _row("iq1_m", "iq1", 256, 16, _IQ1_M, codebook="iq1"),  # 1.54
    GGMLType.IQ2_XXS: _row("iq2_xxs", "iq2", 256, 32, _IQ2_XXS, codebook="iq2_xxs"),  # 1.61
    GGMLType.IQ2_XS: _row("iq2_xs", "iq2", 256, 16, _Q3_K, codebook="iq2_xs"),  # 1.54
    GGMLType.IQ2_S: _row("iq2_xs", "iq2", 256, 16, _Q3_K, packer="iq2_s", codebook="iq2_s"),  # 1.39
    GGMLType.IQ3_XXS: _row("iq3_xxs", "iq3", 256, 32, _IQ4_XS, codebook="iq3_xxs"),  # 1.41
    GGMLType.IQ3_S: _row("iq3_s", "iq3", 256, 32, _IQ4_XS, codebook="iq3_s"),  # 1.25
    GGMLType.F32: _row("f32", "floats", 1, 1, {"codes": _WORD}),
    GGMLType.F16: _row("f16", "floats", 1, 1, {"codes": _HALF}),
    GGMLType.BF16: _row("bf16", "floats", 1, 1, {"codes": _HALF}),
}


_NUMBERS = {name: number for number, name in enumerate(dict.fromkeys(packed.name for packed in PACKED.values()))}
assert READ_AHEAD + 2 * len(_NUMBERS) <= HEADER_WORDS

#: By the names that kernels have: those of the types they read, and of the types they pack.
FAMILIES = {name: packed.family for kind, packed in PACKED.items() for name in (packed.name, kind.name.lower())}


def read_ahead_offset(name: str) -> int:
    """Byte offset in the batch header of a packed type's two words: how many bytes ahead of what its products read they
    ask for lines, into the first cache and into the second. 0 asks for what is read at that moment, hence nothing."""
    return 8 * (READ_AHEAD + 2 * _NUMBERS[name])


def packed_bytes(kind: PackedType, n_out: int, n_in: int) -> int:
    """Bytes of a packed matrix [n_out, n_in]."""
    return round_up(n_out, GROUP) // GROUP * (n_in // kind.values) * kind.record_bytes
