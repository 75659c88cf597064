"""Gemma 4 (text): Gemma 3's form with heads of two sizes, values normed, keys standing in for missing values, the last
layers reading the cache of earlier ones, embeddings of each layer; and experts beside the dense feed-forward.
Source: Gemma Team 2026; layout as llama.cpp's converter writes it."""

from __future__ import annotations

from dataclasses import dataclass

from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import Mixture, read_mixture, routed
from phobos.program.gemma import SharedCaches, gate_layer_input, layer_inputs
from phobos.program.rope import plain_frequencies
from phobos.program.shape import Shape, each_block, read_rotated, read_shape
from phobos.program.steps import Buffer, Program

WINDOW_THETA = 10000.0


@dataclass(frozen=True)
class Config:
    """What differs from block to block; `n_own` blocks have keys and values of their own; `n_per_layer` is the width of
    a layer's embedding, 0 for none."""

    shape: Shape
    heads: tuple[Heads, ...]
    is_windowed: tuple[bool, ...]
    n_ff: tuple[int, ...]
    window_frequencies: tuple[float, ...]
    n_own: int
    n_per_layer: int
    experts: Mixture | None

    @classmethod
    def from_gguf(cls, gguf: GGUF) -> Config:
        """Read the metadata; a single number stands for all blocks."""
        n = gguf.get_int("gemma4.block_count")
        pattern, counts, widths = "attention.sliding_window_pattern", "attention.head_count_kv", "feed_forward_length"
        shape = read_shape(gguf, n_kv_heads=1, n_ff=0)
        windowed = each_block(gguf, pattern, gguf.get_bools(f"gemma4.{pattern}"), n)
        kv_heads = each_block(gguf, counts, gguf.get_ints(f"gemma4.{counts}"), n)
        window_dim = gguf.get_int("gemma4.attention.key_length_swa", shape.heads.k_dim)
        dims = [window_dim if is_windowed else shape.heads.k_dim for is_windowed in windowed]
        n_rot = read_rotated(gguf, window_dim, "rope.dimension_count_swa")
        theta = gguf.get_float("gemma4.rope.freq_base_swa", WINDOW_THETA)
        return cls(
            shape=shape,
            heads=tuple(Heads(shape.heads.n_heads, kv, d, d, 1.0) for kv, d in zip(kv_heads, dims, strict=True)),
            is_windowed=windowed,
            n_ff=each_block(gguf, widths, gguf.get_ints(f"gemma4.{widths}"), n),
            window_frequencies=tuple(float(f) for f in plain_frequencies(n_rot, theta)),
            n_own=n - gguf.get_int("gemma4.attention.shared_kv_layers", 0),  # `SharedCaches` holds it against the rest
            n_per_layer=gguf.get_int("gemma4.embedding_length_per_layer_input", 0),
            experts=read_mixture(gguf) if gguf.get_int("gemma4.expert_count", 0) > 0 else None,
        )


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), Config.from_gguf(gguf)
    s = c.shape
    x = p.embed("x", "token_embd.weight", s.n_vocab, s.n_embd, scale=s.n_embd**0.5)
    full = p.rope_table("rope", s.rope.frequencies, s.rope.magnitude)
    windowed = p.rope_table("window_rope", c.window_frequencies)
    embedded = layer_inputs(p, x, s, c.n_per_layer) if c.n_per_layer else None
    caches = SharedCaches(p, c.n_own, s.eps)
    for i in range(s.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", s.eps)
        table, window = (windowed, s.window) if c.is_windowed[i] else (full, 0)
        attended = caches.attend(i, h, c.heads[i], table, window)
        y = attention_out(p, i, attended, "y", s.n_embd, residual=None)
        x = p.norm("x", y, f"blk.{i}.post_attention_norm.weight", s.eps, residual=x)
        y = feed_forward(p, i, x, c)
        x = p.norm("x", y, f"blk.{i}.post_ffw_norm.weight", s.eps, residual=x)
        if embedded is not None:
            y = gate_layer_input(p, i, x, embedded, c.n_per_layer)
            x = p.norm("x", y, f"blk.{i}.post_norm.weight", s.eps, residual=x)
        if p.has(f"blk.{i}.layer_output_scale.weight"):
            x = p.add_rows("x", x, None, weight=f"blk.{i}.layer_output_scale.weight")
    last = p.norm("last", x, "output_norm.weight", s.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), s.n_vocab)
    return p.finish(logits, s.n_ctx, soft_cap=gguf.get_float("gemma4.final_logit_softcapping", 0.0))


def feed_forward(p: ProgramBuilder, i: int, x: Buffer, c: Config) -> Buffer:
    """The dense feed-forward, and in blocks with a router that of the experts too, each normed before and behind."""
    eps, prefix = c.shape.eps, f"blk.{i}"
    h = p.norm("h", x, f"{prefix}.ffn_norm.weight", eps)
    y = gated_mlp(p, i, h, c.n_ff[i], "gelu_tanh", out="y", residual=None, width_tag=str(c.n_ff[i]))
    if c.experts is None or not p.has(f"{prefix}.ffn_gate_inp.weight"):
        return y
    y = p.norm("dense", y, f"{prefix}.post_ffw_norm_1.weight", eps)
    h = p.norm("h", x, f"{prefix}.pre_ffw_norm_2.weight", eps)
    scaled = p.norm("router_in", x, f"{prefix}.ffn_gate_inp.scale", eps)
    scaled = p.add_rows("router_in", scaled, None, scale=x.width**-0.5)
    mixed = routed(p, i, h, c.experts, "gelu_tanh", out="mixed", residual=None, router_input=scaled)
    return p.norm("y", mixed, f"{prefix}.post_ffw_norm_2.weight", eps, residual=y)
