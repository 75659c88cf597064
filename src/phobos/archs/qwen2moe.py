"""Qwen1.5-MoE, Qwen2-MoE and Qwen3-MoE: Qwen's attention with experts. Qwen2's weights are not normalized, its shared
expert has a gate of its own. Source: Yang et al. 2024 and 2025 (technical reports)."""

from __future__ import annotations

from phobos.archs import llama
from phobos.gguf.reader import GGUF
from phobos.program.experts import read_mixture
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    is_old = gguf.architecture == "qwen2moe"
    return llama.build(gguf, style="neox", experts=read_mixture(gguf, is_normalized=not is_old))
