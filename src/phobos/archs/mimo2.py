"""MiMo-V2: windows with sinks between blocks of full attention, with heads and rope of their own; experts.
Source: Xiaomi 2025 and 2026; layout as llama.cpp's converter writes it."""

from __future__ import annotations

from dataclasses import replace

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import mixture, read_mixture
from phobos.program.rope import plain_frequencies
from phobos.program.shape import count_blocks, each_block, read_rotated, read_shape
from phobos.program.steps import Program


def build(gguf: GGUF) -> Program:
    """The forward pass. A block without a router is dense."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    experts = read_mixture(gguf, gating="sigmoid")
    pattern, counts = "attention.sliding_window_pattern", "attention.head_count_kv"
    windowed = each_block(gguf, pattern, gguf.get_bools(f"mimo2.{pattern}"), c.n_layers)
    kv_heads = each_block(gguf, counts, gguf.get_ints(f"mimo2.{counts}"), c.n_layers)
    scale = gguf.get_float("mimo2.attention.value_scale", 1.0)
    theta = gguf.get_float("mimo2.rope.freq_base_swa", gguf.get_float("mimo2.rope.freq_base", 10000.0))
    n_rot = read_rotated(gguf, c.heads.k_dim)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    full = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    near = p.rope_table("window_rope", tuple(float(f) for f in plain_frequencies(n_rot, theta)))
    for i in range(count_blocks(gguf, c.n_layers)):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        heads = replace(c.heads, n_kv_heads=kv_heads[i])
        table, window, tag = (near, c.window, "_windowed") if windowed[i] else (full, 0, "_full")
        sinks = p.optional(f"blk.{i}.attn_sinks.weight", heads.n_heads)
        attended = attention(p, i, h, heads, table, style="neox", window=window, sinks=sinks, tag=tag)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x, scale=scale)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        if p.has(f"blk.{i}.ffn_gate_inp.weight"):
            x = mixture(p, i, h, experts, out="x", residual=x)
        else:
            x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
