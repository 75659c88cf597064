"""What is in a model file, as plain facts: read from the header, nothing computed, nothing loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phobos.chat.template_sources import find_template
from phobos.errors import PhobosError
from phobos.gguf.reader import GGUF, open_gguf
from phobos.kernels.model_info import quantization_label
from phobos.printable import printable

PREVIEW_CHARS = 60
PREVIEW_ITEMS = 4


@dataclass(frozen=True)
class Fact:
    """One metadata entry: its value cut to a line, and how many values a list has."""

    key: str
    kind: str
    text: str
    n_items: int | None = None


@dataclass(frozen=True)
class TensorRow:
    """One tensor; `shape` slowest first."""

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int


@dataclass(frozen=True)
class Report:
    """A model file at a glance; `problem` says why Phobos cannot run it, if so."""

    path: str
    n_shards: int
    n_bytes: int
    version: int
    name: str
    architecture: str
    quantization: str
    types: str
    n_params: int
    n_ctx: int | None
    n_layers: int | None
    n_embd: int | None
    n_heads: int | None
    n_kv_heads: int | None
    tokenizer: str
    n_vocab: int | None
    bos_id: int | None
    eos_id: int | None
    dialect: str
    template: str | None
    problem: str | None
    metadata: tuple[Fact, ...]
    tensors: tuple[TensorRow, ...]


def inspect_file(path: Path) -> Report:
    """Read a file's header; `FileError` when it is none."""
    with open_gguf(path) as gguf:
        return report_on(gguf)


def report_on(gguf: GGUF) -> Report:
    """The facts of an open file."""
    arch = _text(gguf, "general.architecture") or "unknown"
    template = find_template(gguf.metadata)
    tokens = gguf.metadata.preview("tokenizer.ggml.tokens", 0) if "tokenizer.ggml.tokens" in gguf.metadata else None
    return Report(
        path=str(gguf.paths[0]),
        n_shards=len(gguf.paths),
        n_bytes=sum(p.stat().st_size for p in gguf.paths),
        version=gguf.version,
        name=printable(_text(gguf, "general.name") or gguf.paths[0].stem),
        architecture=printable(arch),
        quantization=quantization_label(gguf),
        types=matrix_types(gguf),
        n_params=count_params(gguf),
        n_ctx=_number(gguf, f"{arch}.context_length"),
        n_layers=_number(gguf, f"{arch}.block_count"),
        n_embd=_number(gguf, f"{arch}.embedding_length"),
        n_heads=_number(gguf, f"{arch}.attention.head_count"),
        n_kv_heads=_number(gguf, f"{arch}.attention.head_count_kv"),
        tokenizer=" ".join(filter(None, (_text(gguf, "tokenizer.ggml.model"), _text(gguf, "tokenizer.ggml.pre")))),
        n_vocab=tokens[1] if tokens is not None else None,
        bos_id=_number(gguf, "tokenizer.ggml.bos_token_id"),
        eos_id=_number(gguf, "tokenizer.ggml.eos_token_id"),
        dialect=dialect_of(template),
        template=template,
        problem=problem_of(gguf),
        metadata=tuple(_fact(key, gguf) for key in gguf.metadata),
        tensors=tuple(TensorRow(t.name, tuple(t.shape), t.type.name, t.n_bytes) for t in gguf.tensors.values()),
    )


def count_params(gguf: GGUF) -> int:
    """Values in all tensors."""
    total = 0
    for tensor in gguf.tensors.values():
        n = 1
        for length in tensor.shape:
            n *= int(length)
        total += n
    return total


def matrix_types(gguf: GGUF) -> str:
    """The types of the matrices, most bytes first: `Q4_K + Q6_K`."""
    n_bytes: Counter[str] = Counter()
    for tensor in gguf.tensors.values():
        if len(tensor.shape) > 1:
            n_bytes[tensor.type.name] += tensor.n_bytes
    total = sum(n_bytes.values())
    return " + ".join(name for name, n in n_bytes.most_common() if n >= 0.01 * total) or "none"


def dialect_of(template: str | None) -> str:
    """The name of the output syntax the chat template asks for."""
    if template is None:
        return "none"
    from phobos.chat.dialects import choose_dialect
    from phobos.chat.dialects.families.plain import PLAIN

    dialect = choose_dialect(template)
    if dialect is not PLAIN:
        return dialect.name
    from phobos.chat.template import ChatTemplate
    from phobos.chat.template_fitting import fit_dialect

    try:
        return fit_dialect(ChatTemplate(template))[0].name
    except PhobosError:  # the server says what is wrong with it
        return dialect.name


def problem_of(gguf: GGUF) -> str | None:
    """Why Phobos cannot run the file, in a sentence, or nothing."""
    from phobos.archs import build_program

    try:
        build_program(gguf)
    except PhobosError as error:
        return str(error)
    return None


def _text(gguf: GGUF, key: str) -> str | None:
    value = gguf.metadata.get(key)
    return value if isinstance(value, str) else None


def _number(gguf: GGUF, key: str) -> int | None:
    """A number, or the largest where each block has its own."""
    value = gguf.metadata.get(key)
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        value = max(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _fact(key: str, gguf: GGUF) -> Fact:
    listed = gguf.metadata.preview(key, PREVIEW_ITEMS)
    if listed is None:
        value = gguf.metadata[key]
        return Fact(key, type(value).__name__, _preview(value, PREVIEW_CHARS))
    items, n_items = listed
    shown = ", ".join(_preview(item, 24) for item in items) + (", …" if n_items > len(items) else "")
    return Fact(key, f"list of {type(items[0]).__name__}" if items else "list", f"[{shown}]", n_items)


def _preview(value: Any, limit: int) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
