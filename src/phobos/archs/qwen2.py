"""Qwen2, Qwen2.5 and Qwen3: the Llama form with the "neox" rotation; Qwen2 has biases on queries, keys and values,
Qwen3 norms on each head's queries and keys. Source: Yang et al. 2024 and 2025 (technical reports)."""

from __future__ import annotations

from phobos.archs import llama
from phobos.gguf.reader import GGUF
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    return llama.build(gguf, style="neox")
