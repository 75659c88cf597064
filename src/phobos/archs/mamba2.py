"""Mamba 2: nothing but selective scans. Source: Dao and Gu 2024; layout as llama.cpp's converter writes it."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.recurrent import mamba2, read_recurrence
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, r = ProgramBuilder(gguf), read_recurrence(gguf)
    n_vocab, n_embd = gguf.tensors["token_embd.weight"].shape[0], gguf.get_int("mamba2.embedding_length")
    eps = gguf.get_float("mamba2.attention.layer_norm_rms_epsilon")
    x = p.embed("x", "token_embd.weight", n_vocab, n_embd)
    for i in range(gguf.get_int("mamba2.block_count")):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", eps)
        x = mamba2(p, i, h, r, eps, residual=x)
    last = p.norm("last", x, "output_norm.weight", eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), n_vocab)
    return p.finish(logits, gguf.get_int("mamba2.context_length"))
