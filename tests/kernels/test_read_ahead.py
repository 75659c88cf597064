"""How far ahead products ask for weights: no result depends on it, and the choice is the best one, under load too."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from models.gguf_writer import random_blocks
from one_op import OneOp, loaded, make_batch
from one_op import random as random_values
from phobos.errors import UsageError
from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu import read_ahead
from phobos.kernels.cpu.packed_types import PACKED, PackedType
from phobos.kernels.cpu.products import ReadAhead
from phobos.kernels.cpu.read_ahead import CANDIDATES, DEFAULT, Choice, choose, measure, remembered
from phobos.program.steps import Buffer, MatMul

Q4_K = PACKED[GGMLType.Q4_K]
N_IN, N_OUT, N_TOKENS = 512, 96, 40


@pytest.mark.parametrize("kind", [GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q8_0, GGMLType.F32], ids=lambda x: x.name)
def test_no_bit_depends_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: GGMLType) -> None:
    values = random_values(3, N_OUT, N_IN) if kind is GGMLType.F32 else random_blocks(kind, N_OUT, N_IN, 3)
    out = Buffer("out", N_OUT)
    one = OneOp(
        {"x": random_values(1, N_TOKENS, N_IN)}, (MatMul(out, Buffer("x", N_IN), "w"),), out, {"w": (kind, values)}
    )
    results = []
    for ahead in ("0,0", "4096,0", "0,16384", "1048576,1048576"):
        monkeypatch.setenv("PHOBOS_READ_AHEAD", ahead)
        with loaded(one, tmp_path, "cpu") as backend:
            results.append([backend.run(make_batch(range(n))).copy() for n in (1, 3, 8, 33)])
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


@dataclass
class LoadedMachine:
    """Plays a bench on a machine on which other programs run: most runs are disturbed, all vary a little."""

    gbs: dict[ReadAhead, float]
    share_disturbed: float
    seed: int
    region_bytes: int = 256 << 20
    n_runs: int = 0
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def prepare(self, kind: PackedType, n_rows: int, n_bytes: int, **where: int) -> LoadedMachine:
        return self

    @property
    def n_bytes(self) -> int:
        return read_ahead.PART_BYTES

    def time(self, product: LoadedMachine, ahead: ReadAhead) -> float:
        self.n_runs += 1
        seconds = self.n_bytes / 1e9 / self.gbs[ahead] * self.draw.uniform(1.0, 1.02)
        disturbed = self.draw.random() < self.share_disturbed
        return seconds * (self.draw.uniform(1.1, 10) if disturbed else 1.0)


@pytest.mark.parametrize("share_disturbed", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("best", CANDIDATES)
def test_the_choice_is_the_best_in_ten_of_ten_starts(best: ReadAhead, share_disturbed: float) -> None:
    for seed in range(10):
        gbs = {ahead: 20.0 + i for i, ahead in enumerate(CANDIDATES)} | {best: 27.0}
        bench = LoadedMachine(gbs, share_disturbed, seed)
        choice = measure(bench, Q4_K)  # type: ignore[arg-type]
        assert gbs[choice.ahead] >= 27.0 * 0.97, (seed, choice)
        assert bench.n_runs <= len(CANDIDATES) * (20 if share_disturbed == 0 else read_ahead.MOST_ROUNDS)


@pytest.fixture
def kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what is remembered; no variable says what to use."""
    monkeypatch.delenv("PHOBOS_READ_AHEAD", raising=False)
    monkeypatch.setattr(read_ahead, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_it_is_measured_once(kept_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure_all(kinds: list[PackedType], n_threads: int) -> dict[str, Choice]:
        asked.extend(kind.name for kind in kinds)
        return {kind.name: Choice(CANDIDATES[2], (1.0, 2.0, 3.0, 2.0)) for kind in kinds}

    monkeypatch.setattr(read_ahead, "_measure_all", measure_all)
    for kinds in ([Q4_K], [Q4_K, PACKED[GGMLType.Q8_0]], [Q4_K]):
        assert set(choose(kinds, 2)) == {kind.name for kind in kinds}
        assert choose(kinds, 2)["q4_k"].ahead == CANDIDATES[2]
    assert asked == ["q4_k", "q8_0"]
    assert not remembered(3), "other threads read at another rate"
    (file,) = kept_in.iterdir()
    held = json.loads(file.read_text())["q4_k"]
    unknown, other_code = held | {"ahead": {"near": 1, "far": 2}}, held | {"code": "matmul.matmul_q4_k-0"}
    for damaged in (
        json.dumps({"q4_k": unknown}),
        json.dumps({"q4_k": other_code}),
        *("", "[]", '{"q4_k": 1}', '{"q4_k": {"ahead": {"near": 1}}}'),
    ):
        file.write_text(damaged)
        assert not remembered(2)


def test_a_real_measurement(kept_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "MOST_ROUNDS", 2)
    choice = choose([Q4_K], 1)["q4_k"]
    assert choice.ahead in CANDIDATES and len(choice.gbs) == len(CANDIDATES)
    assert remembered(1) == {"q4_k": choice}


def test_without_memory_to_spare_nothing_is_measured(kept_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead.machine, "read_memory", lambda: read_ahead.machine.Memory(1 << 30, 100 << 20))
    assert choose([Q4_K], 2)["q4_k"] == Choice(DEFAULT)
    assert not remembered(2), "with more memory it is measured"


def test_what_the_variable_says(kept_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOBOS_READ_AHEAD", "0, 8192")
    assert choose([Q4_K], 2)["q4_k"] == Choice(ReadAhead(0, 8192))
    assert not list(kept_in.iterdir())
    for wrong in ("far", "4096", "1,2,3", "-1,0", "0,2000000", "1.5,0"):
        monkeypatch.setenv("PHOBOS_READ_AHEAD", wrong)
        with pytest.raises(UsageError, match="give 4096,0"):
            choose([Q4_K], 2)
