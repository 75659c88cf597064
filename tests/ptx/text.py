"""PTX as a list of instructions, for `ptx_machine.py`. Only what compiled kernels hold; all else is an error.

Operands are registers, numbers, special registers, addresses and braces around several; an instruction is an opcode in
its dotted parts, a guard and operands.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Register:
    """A register; several threads' values under one name."""

    name: str


@dataclass(frozen=True)
class Address:
    """Memory at a register or a symbol, plus bytes."""

    base: Register | str
    offset: int


Operand = Register | Address | np.generic | str | tuple["Operand", ...]


@dataclass(frozen=True)
class Instruction:
    """One instruction. `guard`: a predicate and the value it must have."""

    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[str, bool] | None
    text: str


@dataclass
class Entry:
    """A kernel: parameters in order with their types, bytes of shared memory, where labels stand."""

    name: str
    parameters: list[tuple[str, str]]
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0


_SHARED = re.compile(r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\];")
_ENTRY = re.compile(r"\.entry (\w+)\((.*?)\)", re.DOTALL)
_PARAMETER = re.compile(r"\.param \.(\w+) (\w+)")


def _parse_number(text: str) -> np.generic | None:
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        return np.float32(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
        return np.float64(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
        return np.uint64(int(text, 0) & (2**64 - 1))
    return None


def _parse_operand(text: str) -> Operand:
    text = text.strip()
    if text.startswith("{"):
        return tuple(_parse_operand(part) for part in text[1:-1].split(","))
    if text.startswith("["):
        base, _, offset = text[1:-1].replace(" ", "").partition("+")
        return Address(Register(base) if base.startswith("%") else base, int(offset or 0))
    if text.startswith("%") and not re.match(r"%(tid|ntid|ctaid|nctaid|laneid)", text):
        return Register(text)
    number = _parse_number(text)
    return text if number is None else number


def _split(text: str) -> list[str]:
    """At commas outside braces."""
    return [part for part in re.split(r",\s*(?![^{]*\})", text) if part.strip()]


def _parse_instruction(text: str) -> Instruction:
    guard = None
    body = text
    if body.startswith("@"):
        predicate, body = body.split(None, 1)
        guard = (predicate.lstrip("@!"), "!" not in predicate)
    opcode, _, rest = body.partition(" ") if " " in body.split("\t")[0] else body.partition("\t")
    operands = tuple(_parse_operand(part) for part in _split(rest.strip()))
    parts = tuple(re.split(r"(?<!:)\.(?!:)", opcode.strip()))
    return Instruction(parts, operands, guard, text)


def parse_ptx(ptx: str) -> Entry:
    """The only kernel of a PTX text."""
    ptx = re.sub(r"//[^\n]*", "", ptx)
    found = _ENTRY.search(ptx)
    assert found is not None, "no kernel"
    entry = Entry(found[1], [(name, kind) for kind, name in _PARAMETER.findall(found[2])])
    for align, name, size in _SHARED.findall(ptx):
        start = -(-entry.shared_bytes // int(align)) * int(align)
        entry.shared[name] = start
        entry.shared_bytes = start + int(size)
    body = ptx[ptx.index("{", found.end()) + 1 : ptx.rindex("}")]
    for statement in re.split(r"[;\n]\s*(?![^{\n]*\})", body.replace("\r", "")):
        text = statement.strip()
        while (label := re.match(r"(\$\w+):\s*", text)) is not None:
            entry.labels[label[1]] = len(entry.instructions)
            text = text[label.end() :]
        if text and not text.startswith("."):
            entry.instructions.append(_parse_instruction(text))
    return entry
