"""How far ahead of their reading products ask for weights: chosen on the spot, by measuring, for each packed type.

Some processors follow a stream by themselves and lose by being asked, others follow none, and they differ in how many
lines they can await. So the first load that needs a type on a machine runs its product with each of `CANDIDATES`, in
turn and often, over parts of a region larger than caches, and the fastest is kept beside the kernels' code. The least
time of many short runs counts, since other programs only ever make a run longer. A choice changes no result.

`PHOBOS_READ_AHEAD` ("NEAR,FAR", bytes) is used for all types instead, and nothing is measured then.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from phobos.errors import UsageError
from phobos.host import machine
from phobos.kernels.cpu.compiling.compiler import cache_folder, version_of
from phobos.kernels.cpu.names import made, matmul
from phobos.kernels.cpu.packed_types import PackedType
from phobos.kernels.cpu.products import ProductBench, ReadAhead, kernel_of
from phobos.kernels.cpu.weights import Weight

CANDIDATES = (ReadAhead(0, 0), ReadAhead(4096, 0), ReadAhead(0, 8192), ReadAhead(0, 16384))
DEFAULT = CANDIDATES[1]  # where nothing was measured: gains much where nothing is followed, loses little elsewhere
REGION_BYTES = 256 << 20
LEAST_REGION_BYTES = 32 << 20
WORTH_BYTES = 16 << 20  # of a type, in a model: less than that is not worth measuring
PART_BYTES = 16 << 20  # read in a run, as four matrices
LEAST_ROUNDS, MOST_ROUNDS = 8, 40
_CONFIRMED, _ALIKE = 3, 1.03  # a least time counts once so many runs were that near to it
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Choice:
    """What a type's products use, and the GB a second they read with it and with each candidate."""

    ahead: ReadAhead
    gbs: tuple[float, ...] = ()


def read_forced() -> ReadAhead | None:
    """What `PHOBOS_READ_AHEAD` says."""
    text = os.environ.get("PHOBOS_READ_AHEAD", "")
    if not text:
        return None
    words = text.split(",")
    if len(words) != 2 or not all(word.strip().isdecimal() and int(word) <= _MOST_BYTES for word in words):
        raise UsageError(f"PHOBOS_READ_AHEAD={text} is not two numbers of bytes, at most {_MOST_BYTES}: give 4096,0")
    return ReadAhead(*map(int, words))


def choose_for(weights: Iterable[Weight], kernels: Collection[str], n_threads: int) -> Mapping[str, Choice]:
    """The choices of a model's types; those it holds little of, or has no plain product of, are not measured for it."""
    held: Counter[PackedType] = Counter()
    for weight in weights:
        if weight.kind is not None:
            held[weight.kind] += weight.n_bytes
    worth = [kind for kind, n_bytes in held.items() if n_bytes >= WORTH_BYTES and kernel_of(kind) in kernels]
    default = Choice(read_forced() or DEFAULT)
    return {**dict.fromkeys((kind.name for kind in held), default), **choose(worth, n_threads)}


def choose(kinds: Iterable[PackedType], n_threads: int) -> Mapping[str, Choice]:
    """The choice of each type, by name: forced, remembered, or measured now where there is memory for it."""
    wanted = {kind.name: kind for kind in kinds}
    forced = read_forced()
    if forced is not None:
        return dict.fromkeys(wanted, Choice(forced))
    known = remembered(n_threads)
    missing = [kind for name, kind in wanted.items() if name not in known]
    if missing:
        measured = _measure_all(missing, n_threads)
        known = {**remembered(n_threads), **measured}
        _remember(n_threads, known)
    return {name: known.get(name, Choice(DEFAULT)) for name in wanted}


def _measure_all(kinds: list[PackedType], n_threads: int) -> dict[str, Choice]:
    available = machine.read_memory().available
    n_bytes = REGION_BYTES if available is None else min(REGION_BYTES, available // 8 // PART_BYTES * PART_BYTES)
    if n_bytes < LEAST_REGION_BYTES:
        return {}
    with ProductBench(n_threads, n_bytes) as bench:
        return {kind.name: measure(bench, kind) for kind in kinds}


def measure(bench: ProductBench, kind: PackedType) -> Choice:
    """Run all candidates in turn until the least time of each is confirmed by others."""
    parts = [
        bench.prepare(kind, 1, PART_BYTES, offset=offset, n_matrices=4)
        for offset in range(0, bench.region_bytes - PART_BYTES + 1, PART_BYTES)
    ]
    times: list[list[float]] = [[] for _ in CANDIDATES]
    for i in range(MOST_ROUNDS):
        for j in range(len(CANDIDATES)):
            candidate = (i + j) % len(CANDIDATES)
            part = parts[(i * len(CANDIDATES) + j) % len(parts)]
            times[candidate].append(bench.time(part, CANDIDATES[candidate]))
        if i + 1 >= LEAST_ROUNDS and all(map(_is_confirmed, times)):
            break
    rates = tuple(round(parts[0].n_bytes / min(of_one) / 1e9, 2) for of_one in times)
    return Choice(CANDIDATES[rates.index(max(rates))], rates)


def _is_confirmed(times: list[float]) -> bool:
    return sum(taken <= _ALIKE * min(times) for taken in times) >= _CONFIRMED


def remembered(n_threads: int) -> dict[str, Choice]:
    """What was chosen on this machine for so many threads, of the candidates there are and with the code there is."""
    path = _memory_of(n_threads)
    try:
        held = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
        found = {
            str(name): Choice(ReadAhead(**item["ahead"]), tuple(item["gbs"]))
            for name, item in held.items()
            if item["code"] == _code_of(name)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: choice for name, choice in found.items() if choice.ahead in CANDIDATES}


def describe_choices(names: Iterable[str], n_threads: int) -> dict[str, str]:
    """What types use that were chosen for, or all if forced: "NEAR,FAR" by name."""
    forced, known = read_forced(), remembered(n_threads)
    if forced is not None:
        return dict.fromkeys(sorted(names), str(forced))
    return {name: str(known[name].ahead) for name in sorted(names) if name in known}


def _code_of(name: str) -> str:
    return version_of(made(matmul, "matmul", name).name)


def _remember(n_threads: int, choices: Mapping[str, Choice]) -> None:
    path = _memory_of(n_threads)
    if path is not None:
        aside = path.with_suffix(f".{os.getpid()}.part")
        with contextlib.suppress(OSError):
            held = {name: {"code": _code_of(name), **asdict(choice)} for name, choice in choices.items()}
            aside.write_text(json.dumps(held), encoding="utf-8")
            aside.replace(path)


def _memory_of(n_threads: int) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / f"read-ahead-{n_threads}.json"
