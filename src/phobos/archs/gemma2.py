"""Gemma 2: norms before and after each half, GELU gates, scores and logits capped, every other layer windowed.
Source: Gemma Team 2024 (Gemma 2)."""

from __future__ import annotations

from dataclasses import replace

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.shape import read_shape
from phobos.program.steps import Program

WINDOW, PATTERN = 4096, 2  # of files that do not say: every second layer is full
SCORE_CAP, LOGIT_CAP = 50.0, 30.0
LAYERS_27B = 46


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    # The 27B scales by its width a head instead of its key length; the file does not say so.
    scale = (c.n_embd / c.heads.n_heads) ** -0.5 if c.n_layers == LAYERS_27B else c.heads.scale
    heads = replace(c.heads, scale=scale, soft_cap=gguf.get_float("gemma2.attn_logit_softcapping", SCORE_CAP))
    window = c.window or WINDOW
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd, scale=c.n_embd**0.5)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        is_full = (i + 1) % PATTERN == 0
        attended = attention(p, i, h, heads, table, style="neox", window=0 if is_full else window)
        y = attention_out(p, i, attended, "y", c.n_embd, residual=None)
        x = p.norm("x", y, f"blk.{i}.post_attention_norm.weight", c.eps, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        y = gated_mlp(p, i, h, c.n_ff, "gelu_tanh", out="y", residual=None)
        x = p.norm("x", y, f"blk.{i}.post_ffw_norm.weight", c.eps, residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx, soft_cap=gguf.get_float("gemma2.final_logit_softcapping", LOGIT_CAP))
