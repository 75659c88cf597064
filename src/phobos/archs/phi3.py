"""Phi-3 and Phi-4: the Llama form with one matrix for queries, keys and values, one for gate and up, and per-dimension
rope factors for long contexts. The window some files name is not used, as in llama.cpp: their keys do not say which
layers have it. Source: Abdin et al. 2024."""

from __future__ import annotations

from phobos.archs import llama
from phobos.gguf.reader import GGUF
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    return llama.build(gguf, style="neox")
