"""Files that are wrong: each ends in one plain `FileError`, at once and without taking memory."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.gguf_writer import gguf_bytes, header_bytes, key_bytes, part_path, string_bytes, tensor_bytes, write_gguf
from phobos.errors import FileError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf

HUGE = (1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def refusal(path: Path) -> str:
    """The error of opening `path`, checked for what holds for all of them: quick, small, one line."""
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(FileError) as caught:
            open_gguf(path)
        seconds = time.process_time() - start
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds < 1
    assert peak < 1 << 20
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    assert caught.value.exit_code != 0
    return text


@pytest.fixture
def refuse_bytes(tmp_path: Path) -> Callable[[bytes], str]:
    """Write bytes as a file and give its refusal."""

    def refuse(data: bytes) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return refusal(path)

    return refuse


Refuse = Callable[[bytes], str]
PADDING = bytes(64)


def one_tensor(dims: tuple[int, ...], kind: int = GGMLType.F32, offset: int = 0, name: str = "w") -> bytes:
    """A file with one tensor as declared and 64 bytes of data."""
    head = header_bytes(1, 0) + tensor_bytes(name, dims, kind, offset)
    return head + bytes(-len(head) % 32) + PADDING


# Not a GGUF file at all.


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"<html><body>404</body></html>", "web page"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (b"lmgg" + bytes(40), "older than GGUF"),
        (b"tjgg" + bytes(40), "older than GGUF"),
        (b"hello, this is not a model", "not a GGUF file"),
        (bytes(100), "not a GGUF file"),
        (b"", "0 bytes"),
        (b"GGUF", "4 bytes"),
        (header_bytes(0, 0)[:23], "23 bytes"),
    ],
)
def test_other_files(refuse_bytes: Refuse, start: bytes, says: str) -> None:
    assert says in refuse_bytes(start)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "missing.gguf")
    assert "is a folder" in refusal(tmp_path)
    assert "cannot open" in refusal(tmp_path / "a\0b.gguf")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        assert "not a plain file" in refusal(tmp_path / "pipe.gguf")
    path = write_gguf(tmp_path / "secret.gguf", {}, {})
    path.chmod(0)
    if not os.access(path, os.R_OK):
        assert "ermission" in refusal(path)


@pytest.mark.parametrize("version", [0, 1, 4, 1000])
def test_other_versions(refuse_bytes: Refuse, version: int) -> None:
    assert f"version {version}" in refuse_bytes(header_bytes(0, 0, version=version))


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian_files(refuse_bytes: Refuse, version: int) -> None:
    assert "big-endian" in refuse_bytes(b"GGUF" + struct.pack(">IQQ", version, 1, 1) + PADDING)
    assert "big-endian" in refuse_bytes(b"FUGG" + struct.pack(">IQQ", version, 1, 1) + PADDING)


# Counts and lengths.


@pytest.mark.parametrize("count", [3, 1 << 14, 1 << 32, 1 << 60, 1 << 63, (1 << 64) - 3])
def test_more_tensors_or_keys_than_the_file_can_hold(refuse_bytes: Refuse, count: int) -> None:
    assert f"{count} tensors" in refuse_bytes(header_bytes(count, 0) + PADDING)
    assert f"{count + 2} metadata keys" in refuse_bytes(header_bytes(0, count + 2) + PADDING)


@pytest.mark.parametrize("length", [65, 257, 1 << 30, *HUGE])
def test_strings_longer_than_the_file(refuse_bytes: Refuse, length: int) -> None:
    too_long = struct.pack("<Q", length) + b"x" * 64
    assert "damaged" in refuse_bytes(header_bytes(0, 1) + too_long)  # a key
    assert "damaged" in refuse_bytes(header_bytes(0, 1) + string_bytes("key") + struct.pack("<I", 8) + too_long)
    array = string_bytes("key") + struct.pack("<IIQ", 9, 8, 2) + string_bytes("fine") + too_long
    assert "damaged" in refuse_bytes(header_bytes(0, 1) + array)
    assert "damaged" in refuse_bytes(header_bytes(1, 0) + too_long)  # the name of a tensor


@pytest.mark.parametrize("count", [100, 1 << 30, *HUGE])
@pytest.mark.parametrize("element", [0, 4, 7, 8, 9, 10, 12])
def test_arrays_longer_than_the_file(refuse_bytes: Refuse, element: int, count: int) -> None:
    array = string_bytes("key") + struct.pack("<IIQ", 9, element, count) + bytes(64)
    assert "too early" in refuse_bytes(header_bytes(0, 1) + array)


@pytest.mark.parametrize("element", [0, 8, 9])
def test_arrays_longer_than_any_model_needs(tmp_path: Path, element: int) -> None:
    """A large file full of zeros holds millions of empty values; walking and keeping them would take seconds."""
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        count = 5_000_000
        file.write(header_bytes(0, 1) + string_bytes("key") + struct.pack("<IIQ", 9, element, count))
        file.truncate(128 << 20)
    text = refusal(path)
    assert "more than 4194304 values" in text


def test_more_keys_or_tensors_than_any_model_needs(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for n_tensors, n_keys in ((0, 20_000), (70_000, 0)):
        with path.open("wb") as file:
            file.write(header_bytes(n_tensors, n_keys))
            file.truncate(64 << 20)
        assert f"{n_tensors or n_keys}" in refusal(path)


def test_names_longer_than_any_model_needs(refuse_bytes: Refuse) -> None:
    name = "x" * 257
    assert "257 bytes long" in refuse_bytes(header_bytes(0, 1) + key_bytes(name, 1))
    assert "257 bytes long" in refuse_bytes(one_tensor((4,), name=name))


def test_arrays_nested_without_end(refuse_bytes: Refuse) -> None:
    deep = struct.pack("<IQ", 9, 1) * 2000 + struct.pack("<IQ", 0, 0)
    assert "nested too deep" in refuse_bytes(header_bytes(0, 1) + string_bytes("key") + struct.pack("<I", 9) + deep)
    wide = struct.pack("<IQ", 9, 70_000) + struct.pack("<IQ", 0, 0) * 70_000
    assert "nested too deep" in refuse_bytes(header_bytes(0, 1) + string_bytes("key") + struct.pack("<I", 9) + wide)


@pytest.mark.parametrize("kind", [13, 255, 1 << 31])
def test_values_of_an_unknown_type(refuse_bytes: Refuse, kind: int) -> None:
    assert f"unknown type {kind}" in refuse_bytes(
        header_bytes(0, 1) + string_bytes("key") + struct.pack("<I", kind) + PADDING
    )
    array = string_bytes("key") + struct.pack("<IIQ", 9, kind, 1) + PADDING
    assert f"unknown type {kind}" in refuse_bytes(header_bytes(0, 1) + array)


def test_truth_values_that_are_neither(refuse_bytes: Refuse) -> None:
    assert "neither true nor false" in refuse_bytes(header_bytes(0, 1) + string_bytes("key") + struct.pack("<IB", 7, 2))
    array = string_bytes("key") + struct.pack("<IIQ", 9, 7, 3) + b"\0\1\2"
    assert "neither true nor false" in refuse_bytes(header_bytes(0, 1) + array)


def test_names_that_are_not_text_or_appear_twice(refuse_bytes: Refuse) -> None:
    assert "not text" in refuse_bytes(header_bytes(0, 1) + key_bytes(b"\xff\xfe", 1))
    assert "'key' appears twice" in refuse_bytes(header_bytes(0, 2) + key_bytes("key", 1) + key_bytes("key", 2))
    twice = header_bytes(2, 0) + tensor_bytes("token_embd.weight", (4,), 0, 0) * 2
    assert "tensor 'token_embd.weight' appears twice" in refuse_bytes(twice + bytes(-len(twice) % 32) + PADDING)


# Tensors.


@pytest.mark.parametrize("n_dims", [5, 1000, (1 << 32) - 1])
def test_too_many_dimensions(refuse_bytes: Refuse, n_dims: int) -> None:
    data = header_bytes(1, 0) + string_bytes("w") + struct.pack("<I", n_dims) + bytes(200)
    assert f"'w' has {n_dims} dimensions" in refuse_bytes(data)


@pytest.mark.parametrize("dims", [(0,), (4, 0), (0, 4), (0, 1 << 63), (1, 1, 1, 0)])
def test_a_dimension_of_zero(refuse_bytes: Refuse, dims: tuple[int, ...]) -> None:
    assert "'w' has a dimension of zero" in refuse_bytes(one_tensor(dims))


@pytest.mark.parametrize(
    "dims",
    [
        (17,),
        (1 << 62,),
        (1 << 32, 1 << 32),
        (1 << 31, 1 << 31, 4),
        (1 << 16, 1 << 16, 1 << 16, 1 << 16),
        (1 << 63, 2),
        ((1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1),
    ],
)
def test_products_that_reach_past_the_end_or_overflow(refuse_bytes: Refuse, dims: tuple[int, ...]) -> None:
    assert "'w' reaches to byte" in refuse_bytes(one_tensor(dims))


@pytest.mark.parametrize("offset", [64, 1 << 40, (1 << 64) - 32])
def test_offsets_past_the_end(refuse_bytes: Refuse, offset: int) -> None:
    assert "'w' reaches to byte" in refuse_bytes(one_tensor((8,), offset=offset))


def test_offsets_off_the_alignment(refuse_bytes: Refuse) -> None:
    assert "'w' does not start at a multiple of 32" in refuse_bytes(one_tensor((4,), offset=16))


def test_rows_that_are_no_whole_blocks(refuse_bytes: Refuse) -> None:
    text = refuse_bytes(one_tensor((33,), GGMLType.Q8_0))
    assert "'w'" in text and "Q8_0" in text


def test_tensors_that_overlap(refuse_bytes: Refuse) -> None:
    head = header_bytes(2, 0) + tensor_bytes("first", (16,), 0, 0) + tensor_bytes("second", (4,), 0, 32)
    assert "'first' and 'second' overlap" in refuse_bytes(head + bytes(-len(head) % 32) + PADDING)


@pytest.mark.parametrize("number", [43, 99, 1 << 31])
def test_an_unknown_tensor_type_names_type_and_tensor(refuse_bytes: Refuse, number: int) -> None:
    text = refuse_bytes(one_tensor((4,), number, name="blk.3.ffn_up.weight"))
    assert "'blk.3.ffn_up.weight'" in text and f"type {number}" in text


@pytest.mark.parametrize("number", [4, 31, 36])
def test_a_withdrawn_tensor_type_says_so(refuse_bytes: Refuse, number: int) -> None:
    text = refuse_bytes(one_tensor((4,), number))
    assert f"type {number}" in text and "withdrawn" in text


@pytest.mark.parametrize("alignment", [0, 3, 24, 1 << 21, 1 << 30, 1 << 31])
def test_alignments_that_make_no_sense(refuse_bytes: Refuse, alignment: int) -> None:
    data = header_bytes(0, 1) + key_bytes("general.alignment", np.uint32(alignment)) + PADDING
    assert f"alignment is {alignment}" in refuse_bytes(data)


def test_an_alignment_of_the_wrong_type(refuse_bytes: Refuse) -> None:
    for value in ("32", np.uint64(32), np.int32(32), [32], 32.0):
        assert "'general.alignment'" in refuse_bytes(
            header_bytes(0, 1) + key_bytes("general.alignment", value) + PADDING
        )


# Damaged and glued files.


def sound_file() -> bytes:
    metadata = {"general.architecture": "llama", "yes": True, "words": ["a", "bc"], "nested": [[1], [2]], "n": [0.5]}
    rng = np.random.default_rng(0)
    tensors = {"a": (GGMLType.Q4_0, rng.standard_normal((2, 64))), "b": (GGMLType.F32, rng.standard_normal(5))}
    return gguf_bytes(metadata, tensors)


def test_cut_anywhere(tmp_path: Path) -> None:
    """Every shorter file is refused; only the padding after the last tensor may be missing."""
    data = sound_file()
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    last = max(tensor.offset + tensor.n_bytes for tensor in open_gguf(path).tensors.values())
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if size < last:
            refusal(path)
        else:
            open_gguf(path).close()


def test_glued_files(tmp_path: Path, refuse_bytes: Refuse) -> None:
    data = sound_file()
    assert "another GGUF file follows" in refuse_bytes(data + data)
    assert "another GGUF file follows" in refuse_bytes(gguf_bytes({"a": 1}, {}) + data)
    unpadded = data[: len(data) - 12]  # five float32 values take 20 of their 32 bytes
    assert "another GGUF file follows" in refuse_bytes(unpadded + data)
    first = write_gguf(
        tmp_path / "split.gguf", {}, {"a": (GGMLType.F32, np.ones(3)), "b": (GGMLType.F32, np.ones(3))}, split=2
    )
    assert "another GGUF file follows" in refuse_bytes(
        first.read_bytes() + part_path(tmp_path / "split.gguf", 2, 2).read_bytes()
    )


def test_other_bytes_after_the_data_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(sound_file() + b"signature" * 10)
    with open_gguf(path) as model:
        assert set(model.tensors) == {"a", "b"}


def test_split_keys_that_make_no_sense(tmp_path: Path) -> None:
    path = part_path(tmp_path / "model.gguf", 1, 2)
    path.write_bytes(gguf_bytes({"split.count": "two"}, {}))
    assert "'split.count' is not a whole number" in refusal(path)
    path.write_bytes(gguf_bytes({"split.count": np.uint64((1 << 64) - 1), "split.no": 0}, {}))
    assert "original names" in refusal(path)
    many = part_path(tmp_path / "model.gguf", 1, 99_999)
    many.write_bytes(gguf_bytes({"split.count": 99_999, "split.no": 0}, {}))
    assert "model-00002-of-99999.gguf is missing" in refusal(many)


# Any other damage.


def survives(path: Path, data: bytes) -> None:
    """Either a `FileError`, or a model whose every value and tensor can be read."""
    path.write_bytes(data)
    start = time.process_time()
    try:
        with open_gguf(path) as model:
            for key in model.metadata:
                assert model.metadata[key] is not None
            assert sum(len(model.data(name)) for name in model.tensors) <= len(data)
    except FileError as error:
        assert "\n" not in str(error)
    assert time.process_time() - start < 0.25


FUZZ = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
EDGES = st.sampled_from([0, 1, 2, 8, 9, 32, 255, 256, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 32, *HUGE])


@FUZZ
@given(edits=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    data = bytearray(sound_file())
    for at, value in edits:
        data[at % len(data)] = value
    survives(tmp_path / "model.gguf", bytes(data))


@FUZZ
@given(at=st.integers(0, 500), number=EDGES, size=st.sampled_from([4, 8]))
def test_changed_numbers(tmp_path: Path, at: int, number: int, size: int) -> None:
    data = bytearray(sound_file())
    at %= len(data) - 8
    data[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    survives(tmp_path / "model.gguf", bytes(data))


@FUZZ
@given(at=st.integers(0, 500), until=st.integers(0, 500), extra=st.binary(max_size=40))
def test_removed_and_added_bytes(tmp_path: Path, at: int, until: int, extra: bytes) -> None:
    data = sound_file()
    survives(tmp_path / "model.gguf", data[:at] + extra + data[max(at, until) :])


@FUZZ
@given(n_tensors=EDGES, n_keys=EDGES, rest=st.binary(max_size=300))
def test_made_up_bytes(tmp_path: Path, n_tensors: int, n_keys: int, rest: bytes) -> None:
    survives(tmp_path / "model.gguf", header_bytes(n_tensors, n_keys) + rest)


VALUES = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(width=32, allow_nan=False),
    st.text(max_size=20),
    st.lists(st.text(max_size=8), max_size=6),
    st.lists(st.booleans(), min_size=1, max_size=6),
    st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    st.lists(st.lists(st.text(max_size=4), max_size=3), min_size=1, max_size=3),
)


@FUZZ
@given(metadata=st.dictionaries(st.text(max_size=20).filter(str.isprintable).map("x.{}".format), VALUES, max_size=8))
def test_what_is_written_is_read(tmp_path: Path, metadata: dict[str, object]) -> None:
    path = write_gguf(tmp_path / "model.gguf", metadata, {})
    with open_gguf(path) as model:
        assert dict(model.metadata) == metadata
