"""Embeddings of each layer, as Gemma 3n and Gemma 4 have them. Source: Gemma Team 2025 and 2026."""

from __future__ import annotations

from phobos.program.builder import ProgramBuilder
from phobos.program.shape import Shape
from phobos.program.steps import Buffer, HeadNorm, Splice


def layer_inputs(p: ProgramBuilder, x: Buffer, s: Shape, width: int) -> Buffer:
    """For every layer a vector of `width`: from the token, and from the embedding by a matrix."""
    total = s.n_layers * width
    token = p.embed("layer_tokens", "per_layer_token_embd.weight", s.n_vocab, total, scale=width**0.5)
    projected = p.matmul("layer_projected", x, "per_layer_model_proj.weight", total, scale=s.n_embd**-0.5)
    normed = p.buffer("layer_normed", total)
    p.add(HeadNorm(normed, projected, s.n_layers, p.weight("per_layer_proj_norm.weight", width), s.eps))
    return p.add_rows("layer_inputs", normed, token, scale=0.5**0.5)


def gate_layer_input(p: ProgramBuilder, i: int, x: Buffer, inputs: Buffer, width: int) -> Buffer:
    """What block `i`'s vector gives, gated by x, before its norm."""
    mine = p.buffer("layer_input", width)
    p.add(Splice(mine, inputs, 1, width, i * width, 0, 0, 0))
    gate = p.matmul("layer_gate", x, f"blk.{i}.inp_gate.weight", width)
    gated = p.glu("layer_gated", gate, mine, "gelu_tanh")
    return p.matmul("y", gated, f"blk.{i}.proj.weight", x.width)
