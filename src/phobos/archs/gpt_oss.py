"""gpt-oss: every other layer windowed, attention sinks, experts with biases and a clamped activation, the best chosen
first and weighted by their own softmax. Source: OpenAI 2025 (gpt-oss model card)."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import read_mixture, routed
from phobos.program.shape import read_shape
from phobos.program.steps import Program

PATTERN = 2  # every second layer is full


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    experts = read_mixture(gguf, gating="chosen", is_normalized=False)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        sinks = p.weight(f"blk.{i}.attn_sinks.weight", c.heads.n_heads)
        window = 0 if (i + 1) % PATTERN == 0 else c.window
        attended = attention(p, i, h, c.heads, table, style="neox", window=window, sinks=sinks)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.post_attention_norm.weight", c.eps)
        x = routed(p, i, h, experts, "swiglu_oai", out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
