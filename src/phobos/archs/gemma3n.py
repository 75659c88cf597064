"""Gemma 3n (text): several streams of which one passes through each block while the others are predicted and corrected
(AltUp), a narrow path beside attention (LAuReL), embeddings of each layer, sparse activations in early blocks, and the
last blocks reading the caches of earlier ones. Source: Gemma Team 2025; layout as llama.cpp's converter writes it."""

from __future__ import annotations

from dataclasses import replace

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention_out, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.gemma import SharedCaches, gate_layer_input, layer_inputs
from phobos.program.rope import plain_frequencies
from phobos.program.shape import Shape, each_block, read_shape
from phobos.program.steps import Buffer, HeadMatMul, MatchLength, Mix, Program, Sparsify, Splice

N_OWN, PERIOD = 20, 5  # blocks with caches of their own, and every how manieth sees all positions, unless files tell
N_SPARSE, SPARSITY = 10, 1.6448533535  # of a normal distribution this leaves the largest 5%


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, s = ProgramBuilder(gguf), read_shape(gguf, scale=1.0)
    heads, n_streams = replace(s.heads, scale=1.0), p.rows_of("altup_proj.weight") + 1
    width = p.rows_of("per_layer_proj_norm.weight")
    theta, n_rot = gguf.get_float("gemma3n.rope.freq_base_swa", 10000.0), 2 * len(s.rope.frequencies)
    near = p.rope_table("window_rope", tuple(float(f) for f in plain_frequencies(n_rot, theta)))
    full = p.rope_table("rope", s.rope.frequencies, s.rope.magnitude)
    pattern, sparsity = "attention.sliding_window_pattern", "activation_sparsity_scale"
    wanted = gguf.get_bools(f"gemma3n.{pattern}", []) or [(i + 1) % PERIOD != 0 for i in range(s.n_layers)]
    windowed = each_block(gguf, pattern, wanted, s.n_layers)
    n_shared = gguf.get_int("gemma3n.attention.shared_kv_layers", max(0, s.n_layers - N_OWN))
    caches = SharedCaches(p, s.n_layers - n_shared, s.eps)
    shares = gguf.get_floats(f"gemma3n.{sparsity}", []) or [SPARSITY * (i < N_SPARSE) for i in range(s.n_layers)]
    scales = each_block(gguf, sparsity, shares, s.n_layers)
    x = p.embed("x", "token_embd.weight", s.n_vocab, s.n_embd, scale=s.n_embd**0.5)
    inputs = layer_inputs(p, x, s, width)
    streams = spread(p, x, n_streams)
    for i in range(s.n_layers):
        predicted = p.buffer("predicted", streams.width)
        routed = route(p, i, first_of(p, streams, s), s)
        factors = p.matmul("factors", routed, f"blk.{i}.altup_predict_coef.weight", n_streams**2)
        p.add(Mix(predicted, streams, factors, streams, n_streams, n_streams))
        active = first_of(p, predicted, s, "active")
        h = p.norm("h", active, f"blk.{i}.attn_norm.weight", s.eps)
        side = narrow_path(p, i, h, s)
        table, window = (near, s.window) if windowed[i] else (full, 0)
        y = attention_out(p, i, caches.attend(i, h, heads, table, window), "y", s.n_embd, residual=None)
        y = p.norm("mid", y, f"blk.{i}.post_attention_norm.weight", s.eps, residual=active)
        mid = p.add_rows("mid", y, side, scale=0.5**0.5)
        y = p.norm("y", feed_forward(p, i, mid, s, scales[i]), f"blk.{i}.post_ffw_norm.weight", s.eps, residual=mid)
        factors = p.matmul("correction", route(p, i, y, s), f"blk.{i}.altup_correct_coef.weight", n_streams)
        news = p.add_rows("news", y, p.add_rows("against", active, None, scale=-1.0))
        p.add(Mix(streams, news, factors, predicted, n_streams, 1, offset=1.0))
        scale = f"blk.{i}.altup_correct_scale.weight"
        first = p.add_rows("first", first_of(p, streams, s), None, weight=scale)
        y = p.norm("layer_out", gate_layer_input(p, i, first, inputs, width), f"blk.{i}.post_norm.weight", s.eps)
        p.add(Mix(streams, y, None, streams, n_streams - 1, 1, offset=1.0, skipped=1))
    last = p.norm("last", gather(p, streams, s, n_streams), "output_norm.weight", s.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), s.n_vocab)
    return p.finish(logits, s.n_ctx, soft_cap=gguf.get_float("gemma3n.final_logit_softcapping", 30.0))


def first_of(p: ProgramBuilder, streams: Buffer, s: Shape, out: str = "first") -> Buffer:
    """The stream that passes through blocks."""
    first = p.buffer(out, s.n_embd)
    p.add(Splice(first, streams, 1, s.n_embd, 0, 0, 0, 0))
    return first


def spread(p: ProgramBuilder, x: Buffer, n: int) -> Buffer:
    """The embedding, and as the other streams what matrices make of it, as long as it."""
    e = x.width
    copies, others = p.buffer("copies", (n - 1) * e), p.buffer("others", (n - 1) * e)
    streams = p.buffer("streams", n * e)
    p.add(Splice(copies, x, n - 1, e, 0, 0, 0, e))
    p.add(HeadMatMul(others, copies, p.weight("altup_proj.weight", n - 1, e, e), n - 1))
    p.add(MatchLength(others, x, n - 1))
    p.add(Splice(streams, x, 1, e, 0, 0, 0, 0))
    p.add(Splice(streams, others, n - 1, e, 0, e, e, e))
    return streams


def gather(p: ProgramBuilder, streams: Buffer, s: Shape, n: int) -> Buffer:
    """The mean of the first stream and of what matrices make of the others, as long as it."""
    e = s.n_embd
    copies, others = p.buffer("copies", (n - 1) * e), p.buffer("others", (n - 1) * e)
    p.add(Splice(copies, streams, n - 1, e, e, e, 0, e))
    p.add(HeadMatMul(others, copies, p.weight("altup_unembd_proj.weight", n - 1, e, e), n - 1))
    first = first_of(p, streams, s)
    p.add(MatchLength(others, first, n - 1))
    p.add(Mix(p.buffer("x", e), others, None, None, 1, n - 1, offset=1.0))
    return p.add_rows("x", p.buffer("x", e), first, scale=1 / n)


def route(p: ProgramBuilder, i: int, x: Buffer, s: Shape) -> Buffer:
    """What coefficients are made of: a few values of x between -1 and 1."""
    h = p.norm("routed", x, f"blk.{i}.altup_router_norm.weight", s.eps)
    n = p.rows_of("altup_proj.weight") + 1
    return p.tanh(p.matmul("route", h, f"blk.{i}.altup_router.weight", n, scale=1 / s.n_embd))


def narrow_path(p: ProgramBuilder, i: int, h: Buffer, s: Shape) -> Buffer:
    """h plus what two matrices through a narrow vector make of it."""
    rank = p.rows_of(f"blk.{i}.laurel_l.weight")
    low = p.matmul("laurel_low", h, f"blk.{i}.laurel_l.weight", rank)
    y = p.matmul("laurel", low, f"blk.{i}.laurel_r.weight", s.n_embd)
    return p.norm("side", y, f"blk.{i}.laurel_post_norm.weight", s.eps, residual=h)


def feed_forward(p: ProgramBuilder, i: int, x: Buffer, s: Shape, sparsity: float) -> Buffer:
    """The gated feed-forward of x, normed; the gate loses all but its largest values where `sparsity` is not 0."""
    h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", s.eps)
    gate = p.matmul("gate", h, f"blk.{i}.ffn_gate.weight", s.n_ff)
    if sparsity > 0:
        p.add(Sparsify(gate, sparsity))
    up = p.matmul("up", h, f"blk.{i}.ffn_up.weight", s.n_ff)
    return p.matmul("down", p.glu("hidden", gate, up, "gelu_tanh"), f"blk.{i}.ffn_down.weight", s.n_embd)
