"""Whose states are whose."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.tiny_models import RECIPES, write_tiny_model
from phobos.counters import CardInfo
from phobos.engine.slots.identity import PACKAGES, digest_sources, identify, identify_model
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


def test_the_code_that_decodes_files_counts() -> None:
    assert "gguf" in PACKAGES


CODE = '''"""A module."""

KINDS = {"b": 1.5}


def scale(x, kinds=frozenset({"a", "b", "c"})):
    """Twice."""
    return x * 2 if x in {"one", "two"} else x
'''


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("KINDS", "# Of files.\nKINDS", False),
        ("    return", "\n    # Twice is enough.\n    return", False),
        ('"""Twice."""', '"""Two times,\n    no more."""', False),
        ('"""A module."""\n', "", False),
        ('    """Twice."""\n', "", False),
        ("x * 2", "(x * 2)", False),
        ("x * 2", "x * 3", True),
        ("1.5", "1.25", True),
        ("x * 2", "x + 2", True),
        ('"two"', '"three"', True),
    ],
)
def test_code_counts_and_words_about_it_do_not(tmp_path: Path, old: str, new: str, counts: bool) -> None:
    digests = []
    for name, text in (("before", CODE), ("after", CODE.replace(old, new))):
        file = tmp_path / name / "kernels" / "inner" / "scale.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        digests.append(digest_sources(tmp_path / name))
    assert text != CODE and (digests[0] != digests[1]) == counts


def test_a_module_elsewhere_is_other_code(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        file = tmp_path / name / "gguf" / f"{name}.py"
        file.parent.mkdir(parents=True)
        file.write_text(CODE)
        digests.add(digest_sources(tmp_path / name))
    assert len(digests) == 2


def test_every_start_finds_the_same_digest(tmp_path: Path) -> None:
    """Sets of texts have another order in every process."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "scale.py").write_text(CODE)
    program = "import sys; from pathlib import Path; from phobos.engine.slots.identity import digest_sources as d; "
    command = [sys.executable, "-c", program + "print(d(Path(sys.argv[1])))", str(tmp_path)]
    found = {
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{digest_sources(tmp_path)}\n".encode()}
