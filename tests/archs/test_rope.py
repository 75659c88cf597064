"""Rope frequencies of every scaling, against the formulas written out; llama.cpp's word on them is in `test_golden`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.gguf_writer import write_gguf
from phobos.errors import UnsupportedModelError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.program.rope import Rope, read_rope

N_ROT = 64
PLAIN = np.array([10000.0 ** (-2 * i / N_ROT) for i in range(N_ROT // 2)])


def read(folder: Path, keys: dict[str, Any], tensors: dict[str, np.ndarray] | None = None) -> Rope:
    metadata = {"general.architecture": "llama", "llama.context_length": 4096}
    metadata |= {f"llama.rope.{key}": value for key, value in keys.items()}
    given = {name: (GGMLType.F32, values) for name, values in (tensors or {}).items()}
    with open_gguf(write_gguf(folder / "m.gguf", metadata, given)) as gguf:
        return read_rope(gguf, N_ROT)


def same(got: Iterable[float], want: np.ndarray) -> bool:
    return np.allclose(list(got), want, rtol=1e-12, atol=0)


def test_plain(tmp_path: Path) -> None:
    for keys in ({}, {"scaling.type": "none", "scaling.factor": 8.0}):
        rope = read(tmp_path, keys)
        assert same(rope.frequencies, PLAIN)
        assert rope.magnitude == 1.0
    assert read(tmp_path, {"freq_base": 500000.0}).frequencies[1] == pytest.approx(500000.0 ** (-2 / N_ROT))


def test_linear(tmp_path: Path) -> None:
    assert same(read(tmp_path, {"scaling.type": "linear", "scaling.factor": 4.0}).frequencies, PLAIN / 4)
    assert same(read(tmp_path, {"scale_linear": 2.0}).frequencies, PLAIN / 2), "files of 2023"


def test_factors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, N_ROT // 2).astype(np.float32)
    tensors = {"rope_freqs.weight": factors}
    assert same(read(tmp_path, {}, tensors).frequencies, PLAIN / factors)
    linear = {"scaling.type": "linear", "scaling.factor": 4.0}
    assert same(read(tmp_path, linear, tensors).frequencies, PLAIN / factors / 4), "both apply"


def test_factors_of_a_wrong_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight has shape \(7,\) where \(32,\)"):
        read(tmp_path, {}, {"rope_freqs.weight": np.ones(7, np.float32)})


def test_yarn(tmp_path: Path) -> None:
    keys = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 1024}
    rope = read(tmp_path, keys)
    wavelengths = 2 * math.pi / PLAIN
    turns = 1024 / wavelengths  # how often a dimension turns within the original context
    for i, frequency in enumerate(rope.frequencies):
        if turns[i] > 40:
            assert frequency == pytest.approx(PLAIN[i], rel=1e-12)
        elif turns[i] < 0.8:
            assert frequency == pytest.approx(PLAIN[i] / 4, rel=1e-12)
        else:
            assert PLAIN[i] / 4 * (1 - 1e-12) <= frequency <= PLAIN[i] * (1 + 1e-12)
    assert sum(turns > 40) > 3
    assert sum(turns < 0.8) > 3
    assert rope.magnitude == pytest.approx(0.1 * math.log(4) + 1)


def test_long_factors(tmp_path: Path) -> None:
    factors = np.linspace(1, 60, N_ROT // 2).astype(np.float32)
    keys = {"scaling.type": "longrope", "scaling.original_context_length": 1024}
    rope = read(tmp_path, keys, {"rope_factors_long.weight": factors})
    assert same(rope.frequencies, PLAIN / factors)
    assert rope.magnitude == pytest.approx(math.sqrt(1 + math.log(4) / math.log(1024)))
