"""Every instruction path gives the same bits: each runs the same tiny models in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import path_probe
from phobos.errors import UsageError
from phobos.kernels.cpu.features import CPU, PATHS, choose_path, host_features
from tiny_models import PACKED_TYPES, RECIPES, write_tiny_model


def probe(out: Path, models: list[Path], path_name: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PHOBOS_CPU_PATH": path_name}
    environment["PYTHONPATH"] = str(Path(path_probe.__file__).parent)
    command = [sys.executable, path_probe.__file__, str(out), *map(str, models)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All packed types, windows, both rotations, both gates."""
    folder = tmp_path_factory.mktemp("paths")
    return [write_tiny_model(RECIPES[name], folder / f"{name}.gguf", PACKED_TYPES) for name in ("llama", "gemma3")]


@pytest.fixture(scope="module")
def native(models: list[Path]) -> dict[str, np.ndarray]:
    return {path.stem: path_probe.run_model(path) for path in models}


@pytest.mark.timeout(900)  # kernels are compiled for each path, once
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_same_bits_on_every_path(path, models, native, tmp_path) -> None:  # type: ignore[no-untyped-def]
    if not path.needs <= host_features():
        pytest.skip(f"this processor lacks {', '.join(sorted(path.needs - host_features()))}")
    if path.name == CPU.name:
        pytest.skip("this is the path of all other tests")
    done = probe(tmp_path / "out.npz", models, path.name)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as answer:
        assert answer["path"] == path.name
        for name, want in native.items():
            assert np.array_equal(answer[name], want), f"{name}: off by {np.abs(answer[name] - want).max()}"


def test_choice() -> None:
    """The widest path whose features are all there."""
    everything = frozenset().union(*(path.needs for path in PATHS))
    for i, path in enumerate(PATHS):
        assert choose_path(path.name, everything, "x86_64") == path
        lacking = frozenset().union(*(later.needs for later in PATHS[i:]))
        chosen = choose_path(None, lacking, "AMD64")
        assert chosen.needs <= lacking
        assert all(not wider.needs <= lacking for wider in PATHS[: PATHS.index(chosen)])
    assert choose_path(None, everything, "x86_64") == PATHS[0]
    assert choose_path(None, frozenset({"avx2", "fma", "f16c"}), "AMD64").name == "avx2"
    assert choose_path(None, frozenset({"sse2"}), "x86_64").name == "portable"
    assert choose_path(None, frozenset(), "aarch64").name == "portable"


def test_a_forced_path_that_cannot_be_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="PHOBOS_CPU_PATH=avx2 needs avx2, f16c, fma, which this processor lacks"):
        choose_path("avx2", frozenset(), "x86_64")
    with pytest.raises(UsageError, match=r"PHOBOS_CPU_PATH=sse9 is unknown: use one of .*avx512vnni"):
        choose_path("sse9", frozenset(), "x86_64")
