"""Every instruction path gives the same bits: each runs the same tiny models in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import path_probe
from models.tiny_models import PACKED_TYPES, RARE_TYPES, RECIPES, SMALL_TYPES, write_tiny_model
from phobos.errors import UsageError
from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.features import CPU, PATHS, InstructionPath, choose_path, host_features


def probe(out: Path, models: list[Path], path_name: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PHOBOS_CPU_PATH": path_name}
    places = [str(Path(path_probe.__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    command = [sys.executable, path_probe.__file__, str(out), *map(str, models)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def check_path(path: InstructionPath, kinds: Sequence[GGMLType], folder: Path) -> None:
    """Windows, both rotations, both gates, and weights of `kinds`: the same bits as on this process's path."""
    if not path.needs <= host_features():
        pytest.skip(f"this processor lacks {', '.join(sorted(path.needs - host_features()))}")
    if path.name == CPU.name:
        pytest.skip("this is the path of all other tests")
    models = [write_tiny_model(RECIPES[name], folder / f"{name}.gguf", kinds) for name in ("llama", "gemma3")]
    done = probe(folder / "out.npz", models, path.name)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "out.npz") as answer:
        assert answer["path"] == path.name
        for model in models:
            want = path_probe.run_model(model)
            assert np.array_equal(answer[model.stem], want), f"off by {np.abs(answer[model.stem] - want).max()}"


# Kernels are compiled for each path once, so the ordinary run makes do with two paths and a few types: codes of 4, 6
# and 8 bits, one and two sums a block.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["avx2", "portable"])
def test_same_bits(name: str, tmp_path: Path) -> None:
    (path,) = (path for path in PATHS if path.name == name)
    check_path(path, (GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q8_0, GGMLType.F16), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_same_bits_of_every_type(path: InstructionPath, tmp_path: Path) -> None:
    check_path(path, (*PACKED_TYPES, *SMALL_TYPES, *RARE_TYPES), tmp_path)


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
