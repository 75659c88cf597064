"""Numbers of model files that no model has: each refused in one sentence, by whoever reads the file."""

from __future__ import annotations

import math
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hostile_files import NAMES, Case, change_number, change_tensor, change_vocabulary, sound, spoil_bytes, write
from phobos.archs import build_program
from phobos.errors import FileError, PhobosError, UnsupportedModelError
from phobos.gguf import hyperparameters
from phobos.gguf.reader import open_gguf
from phobos.inspection import inspect_file
from phobos.kernels.placing.opening import open_backend
from phobos.plan import make_plan
from phobos.program.checks import check_program
from phobos.program.steps import Buffer, CacheLayer, Op, Program, RotateStore, Splice
from phobos.settings import EngineSettings


def with_number(name: str, key: str, value: Any) -> Case:
    case = sound(name)
    return replace(case, metadata=case.metadata | {f"{case.architecture}.{key}": value})


def refusal(case: Case, path: Path) -> str:
    """The sentence that building the program of a file ends in."""
    with open_gguf(write(case, path, with_data=False)) as gguf, pytest.raises(PhobosError) as caught:
        build_program(gguf)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


def numbers_read(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys of numbers that a family reads, without prefix."""
    read: set[str] = set()

    def note(key: str, architecture: str) -> hyperparameters.Allowed:
        read.add(key.removeprefix(f"{architecture}."))
        return allowed(key, architecture)

    allowed = hyperparameters.allowed
    with monkeypatch.context() as patch, open_gguf(write(sound(name), path)) as gguf:
        patch.setattr(hyperparameters, "allowed", note)
        build_program(gguf)
    return read


@pytest.mark.parametrize("name", NAMES)
def test_every_number_a_family_reads_has_a_range_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "m.gguf"
    read = numbers_read(name, path, monkeypatch)
    assert {"block_count", "context_length", "embedding_length"} <= read
    for key in sorted(read):
        assert key in refusal(with_number(name, key, -1000), path)


@pytest.mark.parametrize("key", hyperparameters.HYPERPARAMETERS)
def test_ranges_hold_no_number_that_is_none(key: str) -> None:
    bounds = hyperparameters.HYPERPARAMETERS[key]
    assert not any(bounds.holds(value) for value in (math.nan, math.inf, -math.inf, 1 << 63, -(1 << 31)))
    assert bounds.low < bounds.high and bounds.describe()


def test_a_number_without_a_range_cannot_be_read(tmp_path: Path) -> None:
    with open_gguf(write(with_number("llama", "made.up", 3), tmp_path / "m.gguf")) as gguf:
        for read in (gguf.get_int, gguf.get_float, gguf.get_ints, gguf.get_floats):
            with pytest.raises(LookupError, match=r"llama\.made\.up is read without a range"):
                read("llama.made.up")


@pytest.mark.parametrize("name", NAMES)
def test_no_more_is_rotated_than_a_head_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "m.gguf"
    if "rope.dimension_count" not in numbers_read(name, path, monkeypatch):
        assert name == "mamba2"
        return
    case = sound(name)
    heads = case.metadata.get(f"{case.architecture}.attention.key_length", 64)
    for n_rot in (0, 1, 63, heads + 2, 4096, 1 << 20):
        assert "rope.dimension_count" in refusal(with_number(name, "rope.dimension_count", n_rot), path)


def one_op_program(op: Op, *buffers: Buffer, layers: tuple[CacheLayer, ...] = ()) -> Program:
    return Program((op,), buffers, layers, None, 1, 1)


def test_no_program_reaches_beside_its_buffers() -> None:
    """Whatever a builder made of the numbers: what a launch would be given is held against the buffers."""
    layer = CacheLayer(0, 2, 64, 64)
    q, k, v, table = Buffer("q", 256), Buffer("k", 128), Buffer("v", 128), Buffer("t", 66)
    wide = one_op_program(RotateStore(q, k, v, table, layer, 4), q, k, v, table, layers=(layer,))
    with pytest.raises(UnsupportedModelError, match="rotate 66 of the 64 values"):
        check_program(wide, {}, "llama")
    for stride, start in ((65, 0), (64, 1)):
        splice = one_op_program(Splice(q, k, 2, 64, start, stride, 0, 64), q, k)
        with pytest.raises(UnsupportedModelError, match="reach to value 129 of the 128 of k"):
            check_program(splice, {}, "llama")
    check_program(one_op_program(Splice(q, k, 2, 64, 0, 64, 128, 64), q, k), {}, "llama")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.head_count", 1 << 31),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 3),
        ("embedding_length", 0),
        ("context_length", 0),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", math.nan),
        ("rope.freq_base", math.inf),
        ("attention.layer_norm_rms_epsilon", -1e-5),
        ("rope.scaling.factor", 0.0),
        ("rope.dimension_count", 66),
        ("block_count", 0),
        ("attention.key_length", 60),
        ("attention.head_count", 1 << 14),
    ],
)
def test_inspect_plan_and_load_refuse_alike(tmp_path: Path, key: str, value: float) -> None:
    path = write(with_number("llama-yarn", key, value), tmp_path / "m.gguf", with_data=False)
    settings = EngineSettings(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = inspect_file(path).problem
        with pytest.raises(PhobosError) as planned:
            make_plan(settings)
        with open_gguf(path) as gguf, pytest.raises(PhobosError) as loaded:
            open_backend(build_program(gguf), gguf, settings, lambda progress: None)
    assert problem == str(planned.value) == str(loaded.value)


def test_more_tokens_than_the_embedding_has_rows_for(tmp_path: Path) -> None:
    case = sound("llama")
    tokens = [*case.metadata["tokenizer.ggml.tokens"], "one more"]
    said = refusal(replace(case, metadata=case.metadata | {"tokenizer.ggml.tokens": tokens}), tmp_path / "m.gguf")
    assert "301 tokens" in said and "rows for 300" in said


@pytest.mark.parametrize("seed", range(4))
def test_any_changed_file_is_refused_or_read(tmp_path: Path, seed: int) -> None:
    """A small share of what `scripts/checks/fuzz_files.py` tries."""
    draw = random.Random(seed)
    path = tmp_path / "m.gguf"
    changes = (change_number, change_number, change_tensor, change_vocabulary, spoil_bytes)
    n_refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            case = draw.choice(changes)(draw, sound(draw.choice(NAMES)))
            try:
                with open_gguf(write(case, path, with_data=False)) as gguf:
                    build_program(gguf)
            except PhobosError as error:
                n_refused += 1
                assert "\n" not in str(error) and str(error).isprintable()
            except Exception as error:
                raise AssertionError(f"seed {seed}: {case.family}: {case.what}") from error
    assert n_refused > 20


def test_numbers_that_become_too_large_for_a_kernel(tmp_path: Path) -> None:
    """Found by the fuzzer: logits are divided by this, and the quotient has no 32 bits."""
    assert "scale is" in refusal(with_number("granite", "logit_scale", 1e-45), tmp_path / "m.gguf")


def test_factors_that_are_no_numbers_are_refused_without_a_warning(tmp_path: Path) -> None:
    case = sound("phi3")
    rows = [replace(r, data=b"\x00\x00\xa0\x7f" * (len(r.data) // 4)) if "long" in r.name else r for r in case.rows]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "rope_factors_long" in refusal(replace(case, rows=tuple(rows)), tmp_path / "m.gguf")


def test_names_that_would_command_a_terminal_are_refused(tmp_path: Path) -> None:
    case = sound("llama")
    rows = (replace(case.rows[0], name="\x1b[2Jx"), *case.rows[1:])
    for spoilt in (replace(case, rows=rows), replace(case, metadata=case.metadata | {"a\x9b1m": 1})):
        with pytest.raises(FileError, match="not text that can be shown") as caught:
            open_gguf(write(spoilt, tmp_path / "m.gguf", with_data=False))
        assert str(caught.value).isprintable()
