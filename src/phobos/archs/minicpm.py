"""MiniCPM 1 and 2: Granite's form; scales older files lack are those of the published models."""

from __future__ import annotations

from phobos.archs import granite
from phobos.gguf.reader import GGUF
from phobos.program.steps import Program

EMBEDDING_SCALE, DEPTH_SCALE, BASE_WIDTH = 12.0, 1.4, 256


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    n_layers, n_embd = gguf.get_int("minicpm.block_count"), gguf.get_int("minicpm.embedding_length")
    return granite.build(gguf, granite.Scales(EMBEDDING_SCALE, DEPTH_SCALE / n_layers**0.5, BASE_WIDTH / n_embd))
