"""What the reader gives for sound files: values of every type, tensors, parts, and how long it takes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from models.gguf_writer import part_path, write_gguf
from phobos.errors import FileError
from phobos.gguf.quants import TABLE, GGMLType
from phobos.gguf.reader import GGUF, TensorInfo, open_gguf

METADATA = {
    "general.architecture": "llama",
    "u8": np.uint8(200),
    "i8": np.int8(-100),
    "u16": np.uint16(60000),
    "i16": np.int16(-30000),
    "u32": np.uint32(4_000_000_000),
    "i32": np.int32(-2_000_000_000),
    "u64": np.uint64(18_000_000_000_000_000_000),
    "i64": np.int64(-9_000_000_000_000_000_000),
    "f32": np.float32(0.5),
    "f64": np.float64(0.1),
    "yes": True,
    "no": False,
    "text": "grüße 😀",
    "empty": "",
    "bools": [True, False, True],
    "words": ["", "a", "zwei", "三"],
    "nothing": [],
    "nested": [[1, 2], [3], [4, 5, 6]],
    "nested words": [["a", "b"], ["c"]],
    "bytes": np.array([0, 255], np.uint8),
    "shorts": np.array([-1, 1], np.int16),
    "doubles": np.array([0.1, -2.5], np.float64),
    "big": np.array([1 << 63], np.uint64),
}


def tensors() -> dict[str, tuple[GGMLType, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {
        "token_embd.weight": (GGMLType.Q4_K, rng.standard_normal((6, 256))),
        "blk.0.attn_norm.weight": (GGMLType.F32, rng.standard_normal(7)),
        "blk.0.ffn_gate_exps.weight": (GGMLType.F16, rng.standard_normal((2, 3, 5))),
        "scalar": (GGMLType.F32, np.array(3.5)[()].reshape(1)),
        "iq": (GGMLType.IQ2_XXS, rng.integers(0, 255, (2, 66), np.uint8)),
    }


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type(tmp_path: Path, version: int) -> None:
    path = write_gguf(tmp_path / "model.gguf", METADATA, {}, version=version)
    with open_gguf(path) as model:
        assert model.version == version and model.paths == (path,) and model.architecture == "llama"
        assert list(model.metadata) == list(METADATA) and len(model.metadata) == len(METADATA)
        for key, expected in METADATA.items():
            plain = expected.tolist() if isinstance(expected, np.ndarray | np.generic) else expected
            assert model.metadata[key] == plain, key
            assert type(model.metadata[key]) is type(plain), key
        assert "text" in model.metadata and "missing" not in model.metadata
        with pytest.raises(KeyError):
            model.metadata["missing"]


@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_tensors_are_views_of_the_file(tmp_path: Path, alignment: int) -> None:
    made = tensors()
    path = write_gguf(tmp_path / "model.gguf", {"general.architecture": "llama"}, made, alignment=alignment)
    with open_gguf(path) as model:
        assert list(model.tensors) == list(made)
        info = model.tensors["token_embd.weight"]
        assert isinstance(info, TensorInfo)
        assert (info.name, info.shape, info.type, info.shard) == ("token_embd.weight", (6, 256), GGMLType.Q4_K, 0)
        assert info.n_bytes == 6 * 144 and info.offset % alignment == 0
        assert model.tensors["blk.0.ffn_gate_exps.weight"].shape == (2, 3, 5)
        assert model.tensors["iq"].shape == (2, 256)
        for name, (kind, values) in made.items():
            data = model.data(name)
            assert data.dtype == np.uint8 and data.ndim == 1 and not data.flags.owndata and not data.flags.writeable
            quantize = TABLE[kind].quantize
            packed = values if values.dtype == np.uint8 or quantize is None else quantize(values.astype(np.float32))
            assert bytes(data) == packed.tobytes()


def file_pages() -> int:
    """Bytes of files this process holds in memory."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("this system does not tell what a process holds")
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("RssFile"))


def test_released_bytes_leave_the_process_and_can_be_read_again(tmp_path: Path) -> None:
    size = 24 << 20
    values = np.arange(size // 4, dtype=np.float32).reshape(64, -1)
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "x"}, {"a": (GGMLType.F32, values)})
    with open_gguf(path) as model:
        total = int(model.data("a").sum(dtype=np.int64))
        held = file_pages()
        model.release("a", 0, size // 2)
        half = file_pages()
        model.release("a")
        assert held - half == pytest.approx(size / 2, rel=0.1)
        assert held - file_pages() == pytest.approx(size, rel=0.1)
        assert int(model.data("a").sum(dtype=np.int64)) == total
        model.release("a", 0, 1)


def test_long_arrays_are_not_kept(tmp_path: Path) -> None:
    arrays = {"short": ["a"] * 10, "long": [f"token {i}" for i in range(5000)]}
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "x", **arrays}, {})
    with open_gguf(path) as model:
        for key, value in arrays.items():
            first = model.metadata[key]
            assert first == value == model.metadata[key]
            assert (first is model.metadata[key]) is (key == "short")


def test_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    """The writer of these tests and the reader agree with the format's own package, not only with each other."""
    flat = {key: value for key, value in METADATA.items() if not key.startswith("nested")}
    path = write_gguf(tmp_path / "model.gguf", flat, tensors())
    theirs = gguf.GGUFReader(path)
    with open_gguf(path) as ours:
        for key in flat:
            assert theirs.fields[key].contents() == ours.metadata[key], key
        assert [tensor.name for tensor in theirs.tensors] == list(ours.tensors)
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert (tensor.data_offset, tensor.n_bytes) == (info.offset, info.n_bytes)
            assert tuple(int(n) for n in tensor.shape)[::-1] == info.shape


def test_a_file_of_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_uint32("qwen2.block_count", 3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("norm", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as model:
        assert model.architecture == "qwen2" and model.get_int("qwen2.block_count") == 3
        assert model.get_strs("tokenizer.ggml.tokens") == ["a", "b"]
        assert model.data("norm").view(np.float32).tolist() == list(range(8))


def test_typed_getters(tmp_path: Path) -> None:
    with open_gguf(write_gguf(tmp_path / "model.gguf", METADATA, {})) as model:
        assert model.get_int("u32") == 4_000_000_000
        assert model.get_float("f32") == 0.5 and model.get_float("u8") == 200.0
        assert model.get_str("text") == "grüße 😀"
        assert model.get_bool("yes") is True
        assert model.get_bools("bools") == [True, False, True] and model.get_bools("no") == [False]
        assert model.get_ints("shorts") == [-1, 1] and model.get_ints("u8") == [200]
        assert model.get_floats("doubles") == [0.1, -2.5] and model.get_floats("shorts") == [-1.0, 1.0]
        assert model.get_strs("words")[3] == "三" and model.get_strs("nothing") == []
        assert model.get_int("missing", 7) == 7 and model.get_float("missing", 0.5) == 0.5
        assert model.get_bool("missing", False) is False and model.get_str("missing", "") == ""
        assert model.get_ints("missing", []) == [] and model.get_floats("missing", [1.0]) == [1.0]


@pytest.mark.parametrize(
    ("getter", "key"),
    [
        ("get_int", "text"),
        ("get_int", "yes"),
        ("get_int", "f32"),
        ("get_int", "shorts"),
        ("get_float", "text"),
        ("get_float", "no"),
        ("get_str", "u8"),
        ("get_str", "words"),
        ("get_bool", "u8"),
        ("get_ints", "words"),
        ("get_ints", "doubles"),
        ("get_ints", "nested"),
        ("get_ints", "bools"),
        ("get_floats", "text"),
        ("get_floats", "yes"),
        ("get_bools", "u8"),
        ("get_bools", "words"),
        ("get_strs", "text"),
        ("get_strs", "shorts"),
    ],
)
def test_a_value_of_the_wrong_type_names_its_key(tmp_path: Path, getter: str, key: str) -> None:
    model = open_gguf(write_gguf(tmp_path / "model.gguf", METADATA, {}))
    with model, pytest.raises(FileError, match=f"'{key}' is not"):
        getattr(model, getter)(key)


@pytest.mark.parametrize(
    "getter", ["get_int", "get_float", "get_str", "get_bool", "get_ints", "get_floats", "get_bools", "get_strs"]
)
def test_a_missing_key_is_named(tmp_path: Path, getter: str) -> None:
    with open_gguf(write_gguf(tmp_path / "model.gguf", {}, {})) as model:
        with pytest.raises(FileError, match=r"'llama\.context_length'"):
            getattr(model, getter)("llama.context_length")
        with pytest.raises(FileError, match=r"'general\.architecture'"):
            _ = model.architecture


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = open_gguf(write_gguf(tmp_path / "model.gguf", METADATA, tensors()))
    with model, pytest.raises(FileError, match=r"'output\.weight'"):
        model.data("output.weight")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    metadata = {"name": b"a\xffb", "tokens": [b"\xe2\x82", b"ok"]}
    with open_gguf(write_gguf(tmp_path / "model.gguf", metadata, {})) as model:
        assert model.get_str("name") == "a\ufffdb"
        assert [token.encode("utf-8", "surrogateescape") for token in model.get_strs("tokens")] == metadata["tokens"]


def test_split_files(tmp_path: Path) -> None:
    made = tensors()
    whole = write_gguf(tmp_path / "whole.gguf", METADATA, made)
    first = write_gguf(tmp_path / "model.gguf", METADATA, made, split=3)
    with open_gguf(first) as parts, open_gguf(whole) as one:
        assert parts.paths == tuple(part_path(tmp_path / "model.gguf", i, 3) for i in (1, 2, 3))
        assert {parts.tensors[name].shard for name in made} == {0, 1, 2}
        assert parts.architecture == "llama" and list(parts.tensors) == list(one.tensors)
        for name in made:
            assert bytes(parts.data(name)) == bytes(one.data(name))


def test_split_files_behind_links(tmp_path: Path) -> None:
    """A download cache keeps the bytes under hashes and the names as links."""
    first = write_gguf(tmp_path / "model.gguf", METADATA, tensors(), split=2)
    blobs, names = tmp_path / "blobs", tmp_path / "names"
    blobs.mkdir()
    names.mkdir()
    for i, part in enumerate((first, part_path(tmp_path / "model.gguf", 2, 2))):
        part.rename(blobs / f"hash{i}")
        (names / part.name).symlink_to(blobs / f"hash{i}")
    with open_gguf(names / first.name) as model:
        assert len(model.tensors) == len(tensors())


def test_split_files_opened_by_a_later_part(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", METADATA, tensors(), split=3)
    with pytest.raises(FileError, match=r"is part 2 of 3: open the first part, model-00001-of-00003\.gguf"):
        open_gguf(part_path(tmp_path / "model.gguf", 2, 3))
    renamed = part_path(tmp_path / "model.gguf", 3, 3).rename(tmp_path / "third.gguf")
    with pytest.raises(FileError, match=r"is part 3 of 3: open the first part"):
        open_gguf(renamed)


def test_split_files_with_a_part_missing(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "model.gguf", METADATA, tensors(), split=3)
    part_path(tmp_path / "model.gguf", 3, 3).unlink()
    with pytest.raises(FileError, match=r"model-00003-of-00003\.gguf is missing"):
        open_gguf(first)


def test_split_files_under_other_names(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "model.gguf", METADATA, tensors(), split=2)
    with pytest.raises(FileError, match="original names"):
        open_gguf(first.rename(tmp_path / "first.gguf"))


def test_split_files_mixed_up(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "model.gguf", METADATA, tensors(), split=3)
    second, third = (part_path(tmp_path / "model.gguf", i, 3) for i in (2, 3))
    second_bytes = second.read_bytes()
    second.write_bytes(third.read_bytes())
    with pytest.raises(FileError, match="it is part 2 of 3"):
        open_gguf(first)
    second.write_bytes(second_bytes)
    write_gguf(tmp_path / "other.gguf", {}, tensors(), split=4)
    second.write_bytes(part_path(tmp_path / "other.gguf", 2, 4).read_bytes())
    with pytest.raises(FileError, match="it is part 2 of 3"):
        open_gguf(first)
    second.write_bytes(second_bytes)
    short = write_gguf(tmp_path / "short.gguf", {}, {"x": tensors()["scalar"]}, split=3)
    assert short.exists()
    third.write_bytes(part_path(tmp_path / "short.gguf", 3, 3).read_bytes())
    with pytest.raises(FileError, match="promises 5 tensors"):
        open_gguf(first)


def test_a_tensor_in_two_parts_is_named(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "model.gguf", METADATA, {"a": tensors()["scalar"], "b": tensors()["scalar"]}, split=2)
    second = part_path(tmp_path / "model.gguf", 2, 2)
    data = second.read_bytes()
    second.write_bytes(data.replace(b"\x01\0\0\0\0\0\0\0b", b"\x01\0\0\0\0\0\0\0a"))
    with pytest.raises(FileError, match="tensor 'a' appears twice"):
        open_gguf(first)


def test_closed(tmp_path: Path) -> None:
    model = open_gguf(write_gguf(tmp_path / "model.gguf", METADATA, tensors()))
    assert model.metadata["text"] == METADATA["text"]
    view = model.data("blk.0.attn_norm.weight")
    before = bytes(view)
    model.close()
    assert bytes(view) == before  # a view that is still held keeps the file mapped
    del view
    model.close()
    assert model.metadata["text"] == METADATA["text"]
    with pytest.raises(FileError, match="closed"):
        model.data("blk.0.attn_norm.weight")
    with pytest.raises(FileError, match="closed"):
        _ = model.metadata["words"]


def test_closing_leaves_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, METADATA, {"x": (GGMLType.I8, np.zeros((64, 1 << 10), np.uint8))})
    open_files = Path("/proc/self/fd")
    if not open_files.exists():
        pytest.skip("no /proc on this system")
    before = len(list(open_files.iterdir()))
    for _ in range(20):
        open_gguf(path).close()
    assert len(list(open_files.iterdir())) == before


def test_a_large_vocabulary_opens_quickly(tmp_path: Path) -> None:
    """152 thousand tokens and as many merges, as in Qwen2.5."""
    tokens = [f"token{i}" for i in range(152_000)]
    merges = [f"left{i} right{i}" for i in range(152_000)]
    path = write_gguf(tmp_path / "model.gguf", {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges}, {})
    best = min(_timed_open(path) for _ in range(3))
    assert best < 0.3
    with open_gguf(path) as model:
        assert model.get_strs("tokenizer.ggml.tokens") == tokens
        assert model.get_strs("tokenizer.ggml.merges") == merges


def _timed_open(path: Path) -> float:
    start = time.perf_counter()
    open_gguf(path).close()
    return time.perf_counter() - start


def _real_models() -> list[Path]:
    folder = os.environ.get("PHOBOS_TEST_MODELS")
    return sorted((Path(folder) if folder else Path(__file__).parents[2] / "models").glob("*.gguf"))


@pytest.mark.model
def test_real_models_open_quickly_and_agree_with_the_package() -> None:
    paths = _real_models()
    if not paths:
        pytest.skip("no model files in models/ or PHOBOS_TEST_MODELS")
    for path in paths:
        assert min(_timed_open(path) for _ in range(3)) < 0.3
        with open_gguf(path) as model:
            assert isinstance(model, GGUF) and model.architecture and model.tensors
            assert model.get_strs("tokenizer.ggml.tokens")
            _check_first_rows(model)


def _check_first_rows(model: GGUF) -> None:
    """The first rows of one tensor of each type, bit for bit as the package reads them."""
    for kind in {tensor.type for tensor in model.tensors.values()}:
        tensor = next(tensor for tensor in model.tensors.values() if tensor.type == kind)
        n_rows = tensor.n_bytes // (tensor.shape[-1] // TABLE[kind].block * TABLE[kind].n_bytes)
        rows = model.data(tensor.name).reshape(n_rows, -1)[:8]
        theirs = gguf.dequantize(rows, gguf.GGMLQuantizationType(int(kind)))
        assert np.array_equal(TABLE[kind].dequantize(rows), theirs)


def test_shared_vocabularies_open() -> None:
    folder = Path(os.environ.get("PHOBOS_SHARED", Path(__file__).parents[3] / "shared")) / "vocab"
    paths = sorted(folder.glob("*.gguf"))
    if not paths:
        pytest.skip("no shared vocabularies: set PHOBOS_SHARED")
    for path in paths:
        with open_gguf(path) as model:
            assert model.architecture
            assert len(model.get_strs("tokenizer.ggml.tokens")) > 1000
