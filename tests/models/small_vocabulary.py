"""Made-up vocabularies for tests: every byte, a few merges, a few control and user-defined tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from phobos.gguf.tokenizer import Tokenizer, load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


@dataclass(frozen=True)
class Metadata:
    """Stands in for an open GGUF file."""

    metadata: Mapping[str, Any] = field(default_factory=dict)


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte, written from its description: printable ones are themselves."""
    out, extra = [], 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            out.append(chr(byte))
        else:
            out.append(chr(extra))
            extra += 1
    return out


CHATML_TOKENS = (("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL))


def bpe_metadata(
    extra: Sequence[tuple[str, int]] = CHATML_TOKENS, merges: Sequence[str] = (), **keys: Any
) -> dict[str, Any]:
    """Metadata of a byte-level BPE vocabulary: the bytes, what the merges make, then `extra` (spelling, type).
    `keys` are `tokenizer.ggml.` keys; None leaves a key out."""
    tokens = byte_alphabet() + ["".join(merge.split(" ")) for merge in merges]
    types = [NORMAL] * len(tokens) + [kind for _, kind in extra]
    tokens += [text for text, _ in extra]
    found = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": list(merges) or ["Ġ a"],
        **keys,
    }
    if not merges and "Ġa" not in tokens:
        found["tokens"] = [*tokens, "Ġa"]
        found["token_type"] = [*types, NORMAL]
    return {f"tokenizer.ggml.{key}": value for key, value in found.items() if value is not None}


def bpe_tokenizer(
    extra: Sequence[tuple[str, int]] = CHATML_TOKENS, merges: Sequence[str] = (), **keys: Any
) -> Tokenizer:
    return load_tokenizer(Metadata(bpe_metadata(extra, merges, **keys)))


SPM_PIECES = ("▁", "h", "i", "hi", "▁hi", "a", "▁a", "b", "▁▁")


def spm_metadata(
    pieces: Sequence[str] = SPM_PIECES, extra: Sequence[tuple[str, int]] = (), **keys: Any
) -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary: <unk> <s> </s>, the bytes, the pieces (longer ones score better), then
    `extra`."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), *(kind for _, kind in extra)]
    tokens += [text for text, _ in extra]
    scores = [0.0] * 259 + [float(len(piece)) - 100 for piece in pieces] + [-1000.0] * len(extra)
    found = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, **keys}
    return {f"tokenizer.ggml.{key}": value for key, value in found.items() if value is not None}


def spm_tokenizer(pieces: Sequence[str] = SPM_PIECES, extra: Sequence[tuple[str, int]] = (), **keys: Any) -> Tokenizer:
    return load_tokenizer(Metadata(spm_metadata(pieces, extra, **keys)))


def shared_folder(name: str) -> Path:
    """A folder of the shared test data; skips the test where it is absent."""
    folder = Path(os.environ.get("PHOBOS_SHARED", Path(__file__).parents[3] / "shared")) / name
    if not folder.is_dir():
        pytest.skip(f"no shared {name}: set PHOBOS_SHARED to the folder that holds them")
    return folder


def shared_files(name: str, pattern: str) -> list[Any]:
    """Parameters for one test per shared file; a single skipped one where they are absent."""
    folder = Path(os.environ.get("PHOBOS_SHARED", Path(__file__).parents[3] / "shared")) / name
    files = sorted(folder.glob(pattern))
    if not files:
        reason = f"no shared {name}: set PHOBOS_SHARED to the folder that holds them"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(file, id=file.stem) for file in files]
