"""OLMo 2 and 3: norms after each half only, and on the whole width of queries and keys; OLMo 3 windows three layers of
four. Source: OLMo Team 2024 and 2025."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attend, attention_out, gated_mlp, output_weight, project_qkv
from phobos.program.builder import ProgramBuilder
from phobos.program.rope import plain_frequencies
from phobos.program.shape import read_shape
from phobos.program.steps import Program

PATTERN = 4  # every fourth layer is full, where there is a window


def build(gguf: GGUF) -> Program:
    """The forward pass. Rope scaling is of the full layers only."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    full = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    windowed = full
    if c.window:
        theta = gguf.get_float("olmo2.rope.freq_base", 10000.0)
        plain = plain_frequencies(2 * len(c.rope.frequencies), theta)
        windowed = p.rope_table("window_rope", tuple(float(f) for f in plain))
    for i in range(c.n_layers):
        q, k, v = project_qkv(p, i, x, c.heads)
        q = p.norm("q_normed", q, f"blk.{i}.attn_q_norm.weight", c.eps)
        k = p.norm("k_normed", k, f"blk.{i}.attn_k_norm.weight", c.eps)
        is_full = c.window == 0 or (i + 1) % PATTERN == 0
        table, window = (full, 0) if is_full else (windowed, c.window)
        attended = attend(p, i, q, k, v, c.heads, table, style="neox", window=window, has_head_norms=False)
        y = attention_out(p, i, attended, "y", c.n_embd, residual=None)
        x = p.norm("x", y, f"blk.{i}.post_attention_norm.weight", c.eps, residual=x)
        y = gated_mlp(p, i, x, c.n_ff, "silu", out="y", residual=None)
        x = p.norm("x", y, f"blk.{i}.post_ffw_norm.weight", c.eps, residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
