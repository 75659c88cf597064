"""Gemma 4 (text): Gemma 3's form with heads of two sizes, values normed, keys standing in for missing values, the last
layers reading the cache of earlier ones, and embeddings of each layer. The sizes with experts are refused.
Source: Gemma Team 2026; layout as llama.cpp's converter writes it."""

from __future__ import annotations

from dataclasses import dataclass

from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.rope import plain_frequencies
from phobos.program.shape import Shape, read_shape
from phobos.program.steps import Attention, Buffer, CacheLayer, HeadNorm, Program, RotateStore, Splice

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

    @classmethod
    def from_gguf(cls, gguf: GGUF) -> Config:
        """Read the metadata; a single number stands for all blocks."""
        n = gguf.get_int("gemma4.block_count")

        def each(values: list[int]) -> list[int]:
            return values * n if len(values) == 1 else values

        shape = read_shape(gguf, n_kv_heads=1, n_ff=0)
        windowed = tuple(gguf.get_bools("gemma4.attention.sliding_window_pattern"))
        kv_heads = each(gguf.get_ints("gemma4.attention.head_count_kv"))
        window_dim = gguf.get_int("gemma4.attention.key_length_swa", shape.heads.k_dim)
        dims = [window_dim if is_windowed else shape.heads.k_dim for is_windowed in windowed]
        n_rot = gguf.get_int("gemma4.rope.dimension_count_swa", window_dim)
        theta = gguf.get_float("gemma4.rope.freq_base_swa", WINDOW_THETA)
        if gguf.get_int("gemma4.expert_count", 0) > 0:
            raise UnsupportedModelError("this gemma4 file has experts, which Phobos's gemma4 does not know yet")
        return cls(
            shape=shape,
            heads=tuple(Heads(shape.heads.n_heads, kv, d, d, 1.0) for kv, d in zip(kv_heads, dims, strict=True)),
            is_windowed=windowed,
            n_ff=tuple(each(gguf.get_ints("gemma4.feed_forward_length"))),
            window_frequencies=tuple(float(f) for f in plain_frequencies(n_rot, theta)),
            n_own=n - gguf.get_int("gemma4.attention.shared_kv_layers", 0),
            n_per_layer=gguf.get_int("gemma4.embedding_length_per_layer_input", 0),
        )


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), Config.from_gguf(gguf)
    s = c.shape
    x = p.embed("x", "token_embd.weight", s.n_vocab, s.n_embd, scale=s.n_embd**0.5)
    full = p.rope_table("rope", s.rope.frequencies, s.rope.magnitude)
    windowed = p.rope_table("window_rope", c.window_frequencies)
    embedded = per_layer_inputs(p, x, c) if c.n_per_layer else None
    layers: list[CacheLayer] = []
    for i in range(s.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", s.eps)
        attended = attend(p, i, h, c, windowed if c.is_windowed[i] else full, layers)
        y = attention_out(p, i, attended, "y", s.n_embd, residual=None)
        x = p.norm("x", y, f"blk.{i}.post_attention_norm.weight", s.eps, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", s.eps)
        y = gated_mlp(p, i, h, c.n_ff[i], "gelu_tanh", out="y", residual=None, width_tag=str(c.n_ff[i]))
        x = p.norm("x", y, f"blk.{i}.post_ffw_norm.weight", s.eps, residual=x)
        if embedded is not None:
            x = add_layer_embedding(p, i, x, embedded, c)
        if p.has(f"blk.{i}.layer_output_scale.weight"):
            x = p.add_rows("x", x, None, weight=f"blk.{i}.layer_output_scale.weight")
    last = p.norm("last", x, "output_norm.weight", s.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), s.n_vocab)
    return p.finish(logits, s.n_ctx, soft_cap=gguf.get_float("gemma4.final_logit_softcapping", 0.0))


def attend(p: ProgramBuilder, i: int, h: Buffer, c: Config, table: Buffer, layers: list[CacheLayer]) -> Buffer:
    """Attention over the block's own cache, which joins `layers`, or over the last own one of its kind."""
    heads, eps, kind = c.heads[i], c.shape.eps, "windowed" if c.is_windowed[i] else "full"
    n, n_kv, dim = heads.n_heads, heads.n_kv_heads, heads.k_dim
    q = p.matmul(f"q_{kind}", h, f"blk.{i}.attn_q.weight", n * dim)
    q_norm = p.weight(f"blk.{i}.attn_q_norm.weight", dim)
    if i < c.n_own:
        layer = p.cache_layer(n_kv, dim, dim, c.shape.window if c.is_windowed[i] else 0)
        layers.append(layer)
        k = p.matmul(f"k_{kind}", h, f"blk.{i}.attn_k.weight", n_kv * dim)
        v = k
        if p.has(f"blk.{i}.attn_v.weight"):
            v = p.matmul(f"v_{kind}", h, f"blk.{i}.attn_v.weight", n_kv * dim)
        normed = p.buffer(f"v_normed_{kind}", n_kv * dim)
        p.add(HeadNorm(normed, v, n_kv, None, eps))
        k_norm = p.weight(f"blk.{i}.attn_k_norm.weight", dim)
        p.add(RotateStore(q, k, normed, table, layer, n, "neox", q_norm, k_norm, eps))
    else:
        layer = layers[c.n_own - (2 if c.is_windowed[i] else 1)]
        p.add(RotateStore(q, None, None, table, layer, n, "neox", q_norm, None, eps))
    out = p.buffer(f"attended_{kind}", n * dim)
    p.add(Attention(out, q, layer, n, heads.scale))
    return out


def per_layer_inputs(p: ProgramBuilder, x: Buffer, c: Config) -> Buffer:
    """For every layer a small vector: from the token, and from the embedding by a matrix."""
    s, width = c.shape, c.n_per_layer
    total = s.n_layers * width
    token = p.embed("layer_tokens", "per_layer_token_embd.weight", s.n_vocab, total, scale=width**0.5)
    projected = p.matmul("layer_projected", x, "per_layer_model_proj.weight", total, scale=s.n_embd**-0.5)
    normed = p.buffer("layer_normed", total)
    p.add(HeadNorm(normed, projected, s.n_layers, p.weight("per_layer_proj_norm.weight", width), s.eps))
    return p.add_rows("layer_inputs", normed, token, scale=0.5**0.5)


def add_layer_embedding(p: ProgramBuilder, i: int, x: Buffer, embedded: Buffer, c: Config) -> Buffer:
    """x plus what this layer's vector, gated by x, gives."""
    width = c.n_per_layer
    mine = p.buffer("layer_input", width)
    p.add(Splice(mine, embedded, 1, width, i * width, 0, 0, 0))
    gated = p.glu("layer_gated", p.matmul("layer_gate", x, f"blk.{i}.inp_gate.weight", width), mine, "gelu_tanh")
    y = p.matmul("y", gated, f"blk.{i}.proj.weight", x.width)
    return p.norm("x", y, f"blk.{i}.post_norm.weight", c.shape.eps, residual=x)
