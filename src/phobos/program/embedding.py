"""Embedding models: decoders whose last states stand for a text. A file says so by `<arch>.pooling_type`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.steps import MatMul, Pooling, Program, reads_of, writes_of

_NONE, _RANK = 0, 4
_KINDS: Mapping[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}


def read_pooling(gguf: GGUF) -> Pooling | None:
    """How the model's states are pooled; None where it is no embedding model. `UnsupportedModelError` for what cannot
    be run: rerankers, and attention to what follows."""
    a = gguf.architecture
    kind = gguf.get_int(f"{a}.pooling_type", _NONE)
    if gguf.metadata.get(f"{a}.attention.causal") is False:
        raise UnsupportedModelError(
            f"{a}.attention.causal is false: Phobos runs models whose tokens see only those before them, so choose "
            "another embedding model"
        )
    if kind == _NONE:
        return None
    if kind == _RANK:
        raise UnsupportedModelError(
            f"{a}.pooling_type says that the model ranks pairs of texts: Phobos runs models that write or embed, so "
            "choose another one"
        )
    if kind not in _KINDS:
        raise UnsupportedModelError(f"{a}.pooling_type is {kind}: Phobos knows 1 (mean), 2 (cls) and 3 (last)")
    return _KINDS[kind]


def end_at_states(program: Program, pooling: Pooling) -> Program:
    """The program without what makes logits of the last states."""
    head = next(i for i, op in enumerate(program.ops) if isinstance(op, MatMul) and op.out == program.logits)
    states, ops = program.ops[head], program.ops[:head]
    assert isinstance(states, MatMul)
    touched = {name for op in ops for name in reads_of(op) | writes_of(op)}
    buffers = tuple(buffer for buffer in program.buffers if buffer.name in touched)
    return replace(program, ops=ops, buffers=buffers, logits=states.x, pooling=pooling)
