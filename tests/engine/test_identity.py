"""Whose states are whose."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.tiny_models import RECIPES, write_tiny_model
from phobos.counters import CardInfo
from phobos.engine.slots.identity import identify, identify_model
from phobos.engine.slots.slot_files import Identity
from phobos.gguf.reader import open_gguf
from phobos.settings import EngineSettings


def identity_of(path: Path, features: str = "avx2", **settings: str) -> Identity:
    backend = SimpleNamespace(describe=lambda: CardInfo("a processor", "cpu", features, 2))
    with open_gguf(path) as gguf:
        return identify(gguf, EngineSettings(path, **settings), backend)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(RECIPES["llama"], tmp_path_factory.mktemp("identity") / "m.gguf")


def test_a_copy_is_the_same_model(path: Path, tmp_path: Path) -> None:
    assert identity_of(Path(shutil.copy(path, tmp_path / "other-name.gguf"))) == identity_of(path)


def test_every_tensor_counts(path: Path, tmp_path: Path) -> None:
    with open_gguf(path) as gguf:
        known = identify_model(gguf)
        places = {name: tensor.offset + tensor.n_bytes // 2 for name, tensor in gguf.tensors.items()}
    whole = path.read_bytes()
    seen = {known}
    for place in places.values():
        changed = bytearray(whole)
        changed[place] ^= 1
        (tmp_path / "m.gguf").write_bytes(changed)
        with open_gguf(tmp_path / "m.gguf") as gguf:
            seen.add(identify_model(gguf))
    assert len(seen) == len(places) + 1


def test_metadata_counts(path: Path, tmp_path: Path) -> None:
    other = replace(RECIPES["llama"], keys={"rope.freq_base": 123.0})
    assert identity_of(write_tiny_model(other, tmp_path / "m.gguf")).model != identity_of(path).model


def test_cache_types_and_the_code_path_count(path: Path) -> None:
    ours = identity_of(path)
    assert identity_of(path, cache_type_v="q8_0") == replace(ours, cache="f16/q8_0")
    assert identity_of(path, features="avx512vnni").version != ours.version
