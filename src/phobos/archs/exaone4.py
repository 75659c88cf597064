"""EXAONE 4: norms after each half only, on each head's queries and keys; the 32B windows three layers of four and
rotates those alone. Source: LG AI Research 2025."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.shape import read_shape
from phobos.program.steps import Program

LAYERS_32B = 64
PATTERN = 4  # every fourth layer is full, where there is a window


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    has_windows = c.n_layers == LAYERS_32B and c.window > 0
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        is_windowed = has_windows and (i + 1) % PATTERN != 0
        attended = attention(
            p,
            i,
            x,
            c.heads,
            table if is_windowed or not has_windows else None,
            style="neox",
            window=c.window if is_windowed else 0,
            eps=c.eps,
        )
        y = attention_out(p, i, attended, "y", c.n_embd, residual=None)
        x = p.norm("x", y, f"blk.{i}.post_attention_norm.weight", c.eps, residual=x)
        y = gated_mlp(p, i, x, c.n_ff, "silu", out="y", residual=None)
        x = p.norm("x", y, f"blk.{i}.post_ffw_norm.weight", c.eps, residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
