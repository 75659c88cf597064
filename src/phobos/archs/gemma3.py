"""Gemma 3 (text): norms before and after each half, per-head query and key norms, GELU gates, five windowed layers
to one full one, each kind with its own rope. Source: Gemma Team 2025 (Gemma 3 technical report)."""

from __future__ import annotations

from dataclasses import replace

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.rope import plain_frequencies
from phobos.program.shape import read_shape
from phobos.program.steps import Program

WINDOW_PATTERN = 6  # every sixth layer is full
THETA, WINDOW_THETA = 1_000_000.0, 10000.0
LAYERS_27B = 62


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c, a = ProgramBuilder(gguf), read_shape(gguf, theta=THETA), gguf.architecture
    # The 27B scales by its width a head instead of its key length; the file does not say so.
    heads = replace(c.heads, scale=(c.n_embd / c.heads.n_heads) ** -0.5) if c.n_layers == LAYERS_27B else c.heads
    pattern = gguf.get_int(f"{a}.attention.sliding_window_pattern", WINDOW_PATTERN)
    theta = gguf.get_float(f"{a}.rope.freq_base_swa", WINDOW_THETA)
    near = plain_frequencies(2 * len(c.rope.frequencies), theta)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd, scale=c.n_embd**0.5)
    full = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    windowed = p.rope_table("window_rope", tuple(float(f) for f in near))
    for i in range(c.n_layers):
        is_full = c.window == 0 or (i + 1) % pattern == 0
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        attended = attention(
            p,
            i,
            h,
            heads,
            full if is_full else windowed,
            style="neox",
            window=0 if is_full else c.window,
            eps=c.eps,
        )
        y = attention_out(p, i, attended, "y", c.n_embd, residual=None)
        x = p.norm("x", y, f"blk.{i}.post_attention_norm.weight", c.eps, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        y = gated_mlp(p, i, h, c.n_ff, "gelu_tanh", out="y", residual=None)
        x = p.norm("x", y, f"blk.{i}.post_ffw_norm.weight", c.eps, residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx, soft_cap=gguf.get_float(f"{a}.final_logit_softcapping", 0.0))
