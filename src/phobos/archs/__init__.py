"""One file a model family; this table is all that knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phobos.archs import gemma3, llama, qwen2
from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.builder import ProgramBuilder
from phobos.program.steps import Program

BUILDERS: Mapping[str, Callable[[GGUF], Program]] = {
    "llama": lambda gguf: llama.build(ProgramBuilder(gguf), llama.Config.from_gguf(gguf)),
    "qwen2": lambda gguf: qwen2.build(ProgramBuilder(gguf), qwen2.read_config(gguf)),
    "gemma3": lambda gguf: gemma3.build(ProgramBuilder(gguf), gemma3.Config.from_gguf(gguf)),
}


def build_program(gguf: GGUF) -> Program:
    """The program of a file's model; `UnsupportedModelError` names what is missing."""
    build = BUILDERS.get(gguf.architecture)
    if build is None:
        raise UnsupportedModelError(
            f"architecture {gguf.architecture!r} is not supported: Phobos runs {', '.join(sorted(BUILDERS))}"
        )
    if "token_embd.weight" not in gguf.tensors:
        raise UnsupportedModelError("the file has no tensor token_embd.weight: it holds a vocabulary, not a model")
    return build(gguf)
