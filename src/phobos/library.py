"""The models on this machine and the catalog of those Phobos knows by name.

The folder is `PHOBOS_MODELS` where that is set, `models/` in a checkout, else the user's data folder. A file from a
hub repository lies in `OWNER/REPO/` within it, so that equal file names of two publishers never meet. Nothing here
opens a model file or the network.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from phobos.errors import FileError, ModelNotHereError, UsageError
from phobos.host.folders import data_dir

_PACKAGE = Path(__file__).resolve().parent
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?I?Q\d[A-Z0-9_]*|TQ\d_\d|BF16|F16|F32|MXFP4(?:_MOE)?|NVFP4)(?=[-.]|$)", re.IGNORECASE
)
_HUB_NAME = re.compile(r"hf:([\w.-]+)/([\w.-]+)(?::([\w.-]+)|/(.+))?")
# A hub's page or file as a browser shows it, and the short form other programs take.
_HUB_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+(?::[\w.-]+)?)"
    r"(?:/(?:blob|resolve|raw|tree)/[^/?#]+(?:/([^?#]+))?)?/?(?:[?#].*)?"
)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")
# Files beside models: what images go through, what quantizing learnt, what is added to a model or guesses for it.
_BESIDE = re.compile(r"(?:^|[-._])(mmproj|imatrix|lora|adapter|mtp|eagle\d*|draft)(?=[-._]|$)", re.IGNORECASE)
_NEVER_A_MODEL = ("mmproj", "imatrix")
# What to take from a repository when no quantization is named: good first, small before large.
_PREFERRED_QUANTS = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "IQ4_XS", "Q6_K", "Q8_0")


# Of whole files, embeddings and norms included.
_BITS_A_WEIGHT = {"Q4_K_M": 4.95, "Q8_0": 8.6, "MXFP4": 4.35, "Q4": 5.0}


@dataclass(frozen=True)
class CatalogEntry:
    """A model known by name; it comes from a `wheel` (then `file`, `size` and `sha256` are pinned) or a hub `repo`."""

    name: str
    summary: str
    licence: str
    publisher: str
    params: float  # billions
    context: int
    file: str | None = None
    wheel: str | None = None
    size: int | None = None
    sha256: str | None = None
    repo: str | None = None
    quant: str | None = None

    @property
    def source(self) -> str:
        """Where it comes from, in one word."""
        return f"hf:{self.repo}:{self.quant}" if self.repo else f"wheel {self.wheel}"

    @property
    def approximate_bytes(self) -> int:
        """What is fetched: pinned, or estimated from the parameters."""
        bits = _BITS_A_WEIGHT.get(str(self.quant), _BITS_A_WEIGHT["Q4_K_M"])
        return self.size or int(self.params * 1e9 * bits / 8)


@dataclass(frozen=True)
class HubName:
    """`hf:owner/repo`, with a quantization or a file."""

    owner: str
    repo: str
    quant: str | None = None
    file: str | None = None

    @property
    def repo_id(self) -> str:
        """`owner/repo`."""
        return f"{self.owner}/{self.repo}"

    def __str__(self) -> str:
        tail = f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        return f"hf:{self.repo_id}{tail}"


@dataclass(frozen=True)
class LocalModel:
    """A model file in the folder; `path` is the first shard, `n_bytes` all shards together."""

    name: str
    path: Path
    n_bytes: int
    n_shards: int


@cache
def load_catalog() -> dict[str, CatalogEntry]:
    """The catalog by name, in its own order."""
    tables = _catalog_document()["models"]
    return {name: CatalogEntry(name=name, **table) for name, table in tables.items()}


def default_name() -> str:
    """The catalog name of the default model."""
    return str(_catalog_document()["default"])


@cache
def _catalog_document() -> dict[str, Any]:
    installed, checkout = _PACKAGE / "catalog.toml", _checkout_models() / "catalog.toml"
    path = installed if installed.exists() else checkout
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _checkout_models() -> Path:
    return _PACKAGE.parent.parent / "models"


def models_dir() -> Path:
    """The folder that holds the models; it need not exist yet."""
    if named := os.environ.get("PHOBOS_MODELS"):
        return Path(named).expanduser()
    if (_checkout_models() / "catalog.toml").exists():
        return _checkout_models()
    return data_dir() / "models"


def list_models() -> list[LocalModel]:
    """Every model in the folder, by name; further shards count with their first."""
    root, found = models_dir(), []
    for path in sorted(root.rglob("*.gguf")):
        inside = path.relative_to(root)
        if any(part.startswith(".") for part in inside.parts):
            continue
        if not _is_model(path.name):
            continue
        shard = _SHARD.search(path.name)
        shards = [path] if not shard else sorted(path.parent.glob(_SHARD.sub(f"-*-of-{shard[2]}", path.name)))
        found.append(LocalModel(inside.as_posix(), path, sum(p.stat().st_size for p in shards), len(shards)))
    return found


def remove_model(name: str) -> LocalModel:
    """Delete a model of the folder with all its shards; `FileError` when there is none of that name."""
    model = _find_local(name)
    if model is None:
        raise FileError(f"no model {name!r} in {models_dir()}: `phobos-cli models` lists them")
    for path in shard_paths(model.path):
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.sha256").unlink(missing_ok=True)
    return model


def shard_paths(first: Path) -> list[Path]:
    """All shards of a model by its first; the file itself when it is whole."""
    shard = _SHARD.search(first.name)
    if shard is None:
        return [first]
    total = int(shard[2])
    return [first.with_name(_SHARD.sub(f"-{i:05d}-of-{total:05d}", first.name)) for i in range(1, total + 1)]


def hub_spelling(text: str) -> str:
    """A pasted hub address or a bare `owner/repo` as `hf:…`; anything else as it is."""
    if (address := _HUB_ADDRESS.fullmatch(text.strip())) is not None:
        repo, file = address.groups()
        return f"hf:{repo}/{unquote(file)}" if file and file.lower().endswith(".gguf") else f"hf:{repo}"
    is_bare = _REPOSITORY.fullmatch(text) is not None and not text.lower().endswith(".gguf")
    return f"hf:{text}" if is_bare and text[0] not in "./" else text


def parse_hub_name(text: str) -> HubName:
    """Read `hf:owner/repo[:QUANT|/file]`; `UsageError` otherwise."""
    match = _HUB_NAME.fullmatch(text.strip())
    if match is None or any(part in (".", "..") for part in re.split("/", text.removeprefix("hf:"))):
        raise UsageError(
            f"{text!r} names no hub model: write hf:owner/repo, hf:owner/repo:Q4_K_M or hf:owner/repo/file.gguf"
        )
    owner, repo, quant, file = match.groups()
    if file is not None and not file.lower().endswith(".gguf"):
        raise UsageError(f"{text!r} names no GGUF file: the file's name must end in .gguf")
    return HubName(owner, repo, quant, file)


def quant_of(name: str) -> str | None:
    """The quantization a file's name tells, in capitals, or nothing."""
    found = _QUANT.findall(_SHARD.sub("", Path(name).name))
    return found[-1].upper() if found else None


def choose_files(names: list[str], wanted: HubName) -> list[str]:
    """Of a repository's file names, those of one model: every shard of the file or quantization that is wanted.

    Without either: the best of the usual quantizations. `UsageError` says what there is when nothing fits.
    """
    if wanted.file is not None:
        if wanted.file not in names:
            raise UsageError(f"{wanted.repo_id} has no file {wanted.file}: {_offer(names)}")
        return _with_shards(wanted.file, names)
    firsts = [n for n in names if n.lower().endswith(".gguf") and _is_model(n)]
    firsts = [n for n in firsts if not _BESIDE.search(Path(n).stem)] or firsts  # of a repository of such files, these
    if not firsts:
        raise UsageError(f"{wanted.repo_id} holds no GGUF model: name a repository that does")
    if wanted.quant is not None:
        label = wanted.quant.upper()
        fitting = [n for n in firsts if quant_of(n) == label] or [n for n in firsts if quant_of(n) == f"UD-{label}"]
        if not fitting:
            raise UsageError(f"{wanted.repo_id} has no {wanted.quant}: {_offer(firsts)}")
    else:
        by_rank = sorted(firsts, key=_preference)
        fitting = [by_rank[0]] if len(firsts) == 1 or _preference(by_rank[0]) < len(_PREFERRED_QUANTS) else []
        if not fitting:
            raise UsageError(f"say which file of {wanted.repo_id} you want: {_offer(firsts)}")
    return _with_shards(min(fitting, key=lambda n: (n.count("/"), n)), names)


def _preference(name: str) -> int:
    quant = quant_of(name)
    return _PREFERRED_QUANTS.index(quant) if quant in _PREFERRED_QUANTS else len(_PREFERRED_QUANTS)


def _is_model(name: str) -> bool:
    """Whether a file is a whole model or the first shard of one."""
    shard, beside = _SHARD.search(name), _BESIDE.search(Path(name).stem)
    is_first = shard is None or int(shard[1]) == 1
    return is_first and (beside is None or beside[1].lower() not in _NEVER_A_MODEL)


def _with_shards(first: str, names: list[str]) -> list[str]:
    wanted = [str(p).replace(os.sep, "/") for p in shard_paths(Path(first))]
    missing = [n for n in wanted if n not in names]
    if missing:
        raise UsageError(f"the repository lacks {missing[0]}, a part of the model: choose another file")
    return wanted


def _offer(names: list[str]) -> str:
    labels = sorted({quant_of(n) or n for n in names if n.lower().endswith(".gguf")})
    return f"it has {', '.join(labels[:24])}" if labels else "it has no GGUF files"


def hub_folder(name: HubName) -> Path:
    """Where files of a hub repository lie."""
    return models_dir() / name.owner / name.repo


def find_hub_model(name: HubName) -> Path | None:
    """The first file of a hub model on this machine, or nothing."""
    folder = hub_folder(name)
    local = [p.relative_to(folder).as_posix() for p in folder.rglob("*.gguf")] if folder.is_dir() else []
    if not local:
        return None
    try:
        return folder / choose_files(local, name)[0]
    except UsageError:
        return None


def _find_local(name: str) -> LocalModel | None:
    wanted = name.lower()
    if entry := load_catalog().get(wanted):
        path = catalog_path(entry)
        return next((m for m in list_models() if m.path == path), None)
    models = list_models()
    exact = [m for m in models if wanted in (m.name.lower(), m.name.lower().removesuffix(".gguf"))]
    loose = [m for m in models if wanted in (m.path.name.lower(), m.path.stem.lower())]
    return next(iter(exact or loose), None)


def catalog_path(entry: CatalogEntry) -> Path | None:
    """Where a catalog model lies on this machine, or nothing when it is not here."""
    if entry.repo is not None:
        owner, repo = entry.repo.split("/")
        return find_hub_model(HubName(owner, repo, entry.quant))
    path = models_dir() / str(entry.file)
    return path if path.exists() else None


def resolve_model(text: str | None) -> Path:
    """The file meant by a path, a catalog name, `hf:…` or the name of a file in the folder; nothing: the default.

    `FileError` says in one sentence what is missing and how to get it.
    """
    if text is None:
        path = catalog_path(load_catalog()[default_name()])
        if path is None:
            raise FileError(
                f"there is no model yet: run `phobos-cli pull {default_name()}`, or name a file with --gguf"
            )
        return path
    path = Path(text).expanduser()
    if not path.exists():
        text = hub_spelling(text)
    if text.startswith("hf:"):
        found = find_hub_model(parse_hub_name(text))
        if found is None:
            raise ModelNotHereError(text)
        return found
    if path.is_dir():
        raise FileError(f"{text} is a folder: name the GGUF file in it")
    if path.exists():
        return path
    if (entry := load_catalog().get(text.lower())) is not None:
        known = catalog_path(entry)
        if known is None:
            raise ModelNotHereError(entry.name)
        return known
    if (model := _find_local(text)) is not None:
        return model.path
    raise FileError(f"there is no file and no model {text}{_suggestion(text, path)}")


def _suggestion(text: str, path: Path) -> str:
    siblings = [str(path.with_name(p.name)) for p in path.parent.glob("*.gguf")] if path.parent.is_dir() else []
    names = [*load_catalog(), *(m.name for m in list_models()), *siblings]
    close = difflib.get_close_matches(text, names, n=1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else ": `phobos-cli models` lists those that are here"
