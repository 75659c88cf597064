"""The models folder, the catalog, and what a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from phobos import library
from phobos.errors import FileError, UsageError
from phobos.library import HubName, choose_files, quant_of

FREE_LICENCES = {"Apache-2.0", "MIT"}


def put(folder: Path, name: str, n_bytes: int = 3) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * n_bytes)
    return path


def test_catalog_entries_are_complete() -> None:
    catalog = library.load_catalog()
    assert library.default_name() in catalog
    for name, entry in catalog.items():
        assert name == name.lower() and entry.licence in FREE_LICENCES and entry.publisher and entry.summary
        if entry.wheel is not None:
            assert entry.file and entry.size and entry.sha256 and len(entry.sha256) == 64 and "==" in entry.wheel
        else:
            assert entry.repo is not None and entry.repo.startswith(entry.publisher + "/") and entry.quant
            assert library.quant_of(f"x-{entry.quant}.gguf") == entry.quant
        assert 0.1 <= entry.params <= 120 and entry.context >= 2048
        assert entry.approximate_bytes > 0.4e9 * entry.params
    assert len(catalog) >= 40 and len({entry.source for entry in catalog.values()}) == len(catalog)


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Model-UD-Q4_K_XL-00001-of-00003.gguf", "UD-Q4_K_XL"),
        ("model.IQ2_XXS.gguf", "IQ2_XXS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Phi-3-mini-4k-instruct-fp16.gguf", None),
        ("model-BF16.gguf", "BF16"),
        ("model.gguf", None),
    ],
)
def test_the_quantization_a_name_tells(name: str, quant: str | None) -> None:
    assert quant_of(name) == quant


def test_choosing_takes_every_shard_and_no_projector() -> None:
    files = ["a-Q8_0.gguf", "mmproj-a-Q4_K_M.gguf", "a-Q4_K_M-00001-of-00002.gguf", "a-Q4_K_M-00002-of-00002.gguf"]
    assert choose_files(files, HubName("o", "r")) == files[2:]
    assert choose_files(files, HubName("o", "r", quant="Q8_0")) == ["a-Q8_0.gguf"]
    with pytest.raises(UsageError, match="lacks a-Q4_K_M-00002-of-00002"):
        choose_files(files[:3], HubName("o", "r"))


def test_choosing_takes_the_variant_that_is_named() -> None:
    files = ["a-Q4_K_M.gguf", "a-UD-Q4_K_M.gguf", "a-UD-Q2_K_XL.gguf", "a-lora-Q4_K_M.gguf", "mtp-a-Q4_K_M.gguf"]
    assert choose_files(files, HubName("o", "r")) == ["a-Q4_K_M.gguf"]
    assert choose_files(files, HubName("o", "r", quant="Q4_K_M")) == ["a-Q4_K_M.gguf"]
    assert choose_files(files, HubName("o", "r", quant="ud-q4_k_m")) == ["a-UD-Q4_K_M.gguf"]
    assert choose_files(files, HubName("o", "r", quant="Q2_K_XL")) == ["a-UD-Q2_K_XL.gguf"]
    assert library.parse_hub_name("hf:o/r:UD-Q4_K_XL").quant == "UD-Q4_K_XL"
    assert choose_files(files[3:4], HubName("o", "r")) == files[3:4]


def test_an_unclear_choice_is_asked_for() -> None:
    files = ["one-F16.gguf", "two-F32.gguf"]
    with pytest.raises(UsageError, match="say which file of o/r you want: it has F16, F32"):
        choose_files(files, HubName("o", "r"))
    assert choose_files(files[:1], HubName("o", "r")) == files[:1]


def test_nothing_here_tells_the_pull_command(models_folder: Path) -> None:
    with pytest.raises(FileError, match="run `phobos-cli pull smollm2`, or name a file with --gguf"):
        library.resolve_model(None)
    with pytest.raises(FileError, match=r"run `phobos-cli pull qwen3-0\.6b`"):
        library.resolve_model("Qwen3-0.6B")
    with pytest.raises(FileError, match="run `phobos-cli pull hf:o/r:Q8_0`"):
        library.resolve_model("hf:o/r:Q8_0")


def test_ways_to_name_a_model(models_folder: Path, tmp_path: Path) -> None:
    default = put(models_folder, "SmolLM2-135M-Instruct-Q4_1.gguf")
    own = put(models_folder, "My-Model.gguf")
    hub = put(models_folder, "o/r/thing-Q4_K_M.gguf")
    elsewhere = put(tmp_path, "elsewhere.gguf")
    assert library.resolve_model(None) == library.resolve_model("smollm2") == default
    assert library.resolve_model("my-model") == library.resolve_model("My-Model.gguf") == own
    assert library.resolve_model("hf:o/r") == library.resolve_model("o/r/thing-q4_k_m") == hub
    assert library.resolve_model(str(elsewhere)) == elsewhere


def test_a_wrong_path_suggests_the_right_one(models_folder: Path, tmp_path: Path) -> None:
    right = put(tmp_path, "gemma-3-270m.gguf")
    with pytest.raises(FileError, match=rf"there is no file and no model .*: did you mean {right}\?"):
        library.resolve_model(str(tmp_path / "gema-3-270m.gguf"))
    with pytest.raises(FileError, match="did you mean smollm2"):
        library.resolve_model("smolm2")
    with pytest.raises(FileError, match="is a folder"):
        library.resolve_model(str(tmp_path))


def test_listing_and_removing(models_folder: Path) -> None:
    for i in (1, 2, 3):
        put(models_folder, f"o/r/big-Q8_0-0000{i}-of-00003.gguf", 10)
    put(models_folder, "small.gguf", 5)
    put(models_folder, ".partial/x/half.gguf")
    put(models_folder, "o/r/mmproj-big-F16.gguf")
    assert [(m.name, m.n_bytes, m.n_shards) for m in library.list_models()] == [
        ("o/r/big-Q8_0-00001-of-00003.gguf", 30, 3),
        ("small.gguf", 5, 1),
    ]
    library.remove_model("big-Q8_0-00001-of-00003")
    assert [p.name for p in models_folder.rglob("*.gguf")].count("half.gguf") == 1
    assert [m.name for m in library.list_models()] == ["small.gguf"]
    with pytest.raises(FileError, match="no model 'big'"):
        library.remove_model("big")


def test_the_folder_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHOBOS_MODELS", raising=False)
    checkout = Path(__file__).resolve().parents[2]
    assert library.models_dir() == checkout / "models"
    monkeypatch.setattr(library, "_checkout_models", lambda: Path("/nowhere"))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert library.models_dir() == Path("/data/phobos/models")
