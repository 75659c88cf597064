"""Qwen2 and Qwen2.5: the Llama form with biases on queries, keys and values and the "neox" rotation.
Source: Yang et al. 2024 (Qwen2 technical report)."""

from __future__ import annotations

from phobos.archs.llama import Config, build
from phobos.gguf.reader import GGUF

__all__ = ["build", "read_config"]


def read_config(gguf: GGUF) -> Config:
    """Llama's hyperparameters under `qwen2.*`."""
    return Config.from_gguf(gguf, style="neox")
