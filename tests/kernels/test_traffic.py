"""Bytes a pass reads, against the file's tensors added up by hand; and the machine's remembered limit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from models.family_models import FAMILIES, write_family_model
from models.tiny_models import RECIPES, make_tokens, write_tiny_model
from phobos.archs import build_program
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.kernels.backend import Batch
from phobos.kernels.cpu import limits as machine_limits
from phobos.kernels.placing.opening import open_backend
from phobos.settings import EngineSettings

N_CTX = 512


def read_by(path: Path, passes: list[tuple[list[int], list[int], list[int]]]) -> list[int]:
    """What each pass reads: passes are (positions, slots, outputs)."""
    with open_gguf(path) as gguf:
        backend, _ = open_backend(
            build_program(gguf), gguf, EngineSettings(path, n_ctx=N_CTX, n_slots=2, n_threads=2), lambda p: None
        )
        try:
            totals = [0]
            for positions, slots, outputs in passes:
                tokens = make_tokens(len(positions))
                backend.run(Batch(*(np.array(column, np.int32) for column in (tokens, positions, slots, outputs))))
                assert backend.bytes_read is not None
                totals.append(backend.bytes_read)
        finally:
            backend.close()
    return [after - before for before, after in pairwise(totals)]


def weights_of(path: Path) -> tuple[int, int]:
    """Bytes of the float32 tensors that every pass reads, and of those that only logits need."""
    with open_gguf(path) as gguf:
        sizes = {name: tensor.n_bytes for name, tensor in gguf.tensors.items()}
    last = sizes.pop("output.weight") + sizes.pop("output_norm.weight")
    del sizes["token_embd.weight"]
    return sum(sizes.values()), last


def test_weights_once_and_every_slot_as_far_as_it_goes(tmp_path: Path) -> None:
    recipe = RECIPES["llama-untied"]
    path = write_tiny_model(recipe, tmp_path / "m.gguf", (GGMLType.F32,))
    position = recipe.n_layers * recipe.n_kv_heads * (64 + 64) * 2
    every, last = weights_of(path)
    first = list(range(100))
    one, several, both = read_by(
        path, [(first, [0] * 100, []), ([0, 1, 2], [1, 1, 1], [2]), ([100, 3], [0, 1], [0, 1])]
    )
    assert one == pytest.approx(every + 100 * position, rel=0.01)
    assert several == pytest.approx(every + last + 3 * position, rel=0.01)
    assert both == pytest.approx(every + last + (101 + 4) * position, rel=0.01)
    assert both - several == (101 + 4 - 3) * position


def test_a_window_bounds_what_is_read(tmp_path: Path) -> None:
    path = write_tiny_model(RECIPES["gemma3"], tmp_path / "m.gguf", (GGMLType.F32,))
    with open_gguf(path) as gguf:
        window = gguf.get_int("gemma3.attention.sliding_window")
    assert window < 200
    start = list(range(300))
    _, near, far = read_by(path, [(start, [0] * 300, []), ([200], [0], [0]), ([299], [0], [0])])
    whole = 99 * RECIPES["gemma3"].n_layers * RECIPES["gemma3"].n_kv_heads * 2 * RECIPES["gemma3"].k_dim * 2
    assert 0 < far - near < whole


def test_mixtures_do_not_say(tmp_path: Path) -> None:
    path = write_family_model(FAMILIES["mixtral"], tmp_path / "m.gguf")
    with open_gguf(path) as gguf:
        backend, _ = open_backend(
            build_program(gguf), gguf, EngineSettings(path, n_ctx=64, n_slots=1, n_threads=1), lambda p: None
        )
        try:
            assert backend.bytes_read is None
        finally:
            backend.close()


def test_the_limit_is_known_once_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "cache_folder", lambda: tmp_path)
    assert machine_limits.remembered_read_gbs(3) is None
    monkeypatch.setattr(machine_limits, "REGION_BYTES", 1 << 20)
    monkeypatch.setattr(machine_limits, "TURNS", 100)
    measured = machine_limits.measure_limits(1)
    assert machine_limits.remembered_read_gbs(1) == measured.read_gbs
    (tmp_path / "limits-1.json").write_text('{"read_gbs": 1e9}')
    machine_limits.measure_limits(1)
    assert machine_limits.remembered_read_gbs(1) == 1e9, "what was measured on a busy machine is no limit"
    assert machine_limits.remembered_read_gbs(3) is None, "other threads read at another rate"
    for damaged in ("", "[]", '{"read_gbs": "fast"}', '{"read_gbs": 0}'):
        (tmp_path / "limits-1.json").write_text(damaged)
        assert machine_limits.remembered_read_gbs(1) is None
    monkeypatch.setattr(machine_limits, "cache_folder", lambda: None)
    assert machine_limits.remembered_read_gbs(1) is None
