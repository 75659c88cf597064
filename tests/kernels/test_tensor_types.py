"""`bench --types` and doctor's look at the kernels: measured beside the machine's limits, what is slow is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phobos import cli, doctor
from phobos.bench import tensor_types
from phobos.bench.tensor_types import TypeResult, measure_types, read_types
from phobos.errors import UsageError
from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu import limits as machine_limits
from phobos.kernels.cpu import read_ahead
from phobos.kernels.cpu.limits import MachineLimits
from phobos.kernels.cpu.packed_types import PACKED
from phobos.kernels.cpu.read_ahead import CANDIDATES, Choice


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is measured, nothing of it kept beside the kernels."""
    monkeypatch.setenv("PHOBOS_READ_AHEAD", "0,8192")
    monkeypatch.setattr(machine_limits, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(machine_limits, "PROBES", 1)
    monkeypatch.setattr(machine_limits, "TURNS", 100)
    monkeypatch.setattr(tensor_types, "MATRIX_BYTES", 1 << 20)
    monkeypatch.setattr(tensor_types, "PART_BYTES", 1 << 18)


def test_types_are_measured(small: None) -> None:
    kinds = (GGMLType.Q4_K, GGMLType.F32)
    limits, results = measure_types(kinds, 1, 1, many=(2,), region_bytes=2 << 20)
    assert [r.type for r in results] == ["Q4_K", "F32"]
    for result in results:
        assert result.gbs > 0 and result.share == pytest.approx(result.gbs / limits.read_gbs)
        assert len(result.gops) == 1 and result.gops[0] > 0 and result.ahead == "0,8192"
    assert (results[0].file_bits, round(results[0].packed_bits, 3)) == (4.5, 4.625)


def test_the_command_prints_types(small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(tensor_types, "REGION_BYTES", 2 << 20)
    monkeypatch.setattr(tensor_types, "MANY", (2,))
    command = ["bench", "--types", "q4_k", "--threads", "1", "-r", "1"]
    assert cli.main(command) == 0
    assert "| Q4_K | 4.50 |" in capsys.readouterr().out
    assert cli.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["types"][0]["type"] == "Q4_K"


def test_which_types() -> None:
    assert read_types("all") == tuple(PACKED)
    assert read_types(" q4_k,Q8_0") == (GGMLType.Q4_K, GGMLType.Q8_0)
    for wrong in ("Q4_7", "", ",", "Q4_K,nothing"):
        with pytest.raises(UsageError, match="names no tensor type"):
            read_types(wrong)


def test_a_model_or_types(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["model.gguf", "--types", "all"]):
        assert cli.main(["bench", *words]) != 0
        assert "a model file, or tensor types" in capsys.readouterr().err


@pytest.mark.parametrize(("share", "status"), [(0.95, "ok"), (0.71, "ok"), (0.69, "warn")])
def test_doctor_names_what_is_slow(monkeypatch: pytest.MonkeyPatch, share: float, status: str) -> None:
    choices = {"q4_k": Choice(CANDIDATES[0]), "q6_k": Choice(CANDIDATES[2])}
    monkeypatch.setattr(read_ahead, "remembered", lambda n_threads: choices)

    def measured(kinds: tuple[GGMLType, ...], *of_it: int, **where: object) -> tuple[MachineLimits, list[TypeResult]]:
        shares = {GGMLType.Q4_K: 0.9, GGMLType.Q6_K: share}
        results = [TypeResult(k.name, 4.5, 4.5, 40 * shares[k], shares[k], 1, (), "0,0") for k in kinds]
        return MachineLimits(40.0, 1000.0), results

    monkeypatch.setattr(tensor_types, "measure_types", measured)
    check = doctor.check_kernels()
    assert check.status == status
    assert f"Q6_K {share:.0%} (ahead by 0,0)" in check.text and "40 GB/s" in check.text
    assert ("decoding Q6_K" in check.advice) == (status == "warn")


def test_doctor_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "remembered", lambda n_threads: {})
    assert doctor.check_kernels().status == "ok"
