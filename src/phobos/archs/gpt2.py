"""GPT-2: learned positions added to the embedding, layer norms, biases throughout, a plain GELU feed-forward.
Source: Radford et al. 2019."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, output_weight, plain_mlp
from phobos.program.builder import ProgramBuilder
from phobos.program.shape import read_shape
from phobos.program.steps import AddPosition, Program


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    p.add(AddPosition(x, p.weight("position_embd.weight", c.n_ctx, c.n_embd)))
    for i in range(c.n_layers):
        h = p.layer_norm("h", x, f"blk.{i}.attn_norm", c.eps)
        attended = attention(p, i, h, c.heads, None, style="normal")
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.layer_norm("h", x, f"blk.{i}.ffn_norm", c.eps)
        x = plain_mlp(p, i, h, c.n_ff, "gelu_tanh", out="x", residual=x)
    last = p.layer_norm("last", x, "output_norm", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
