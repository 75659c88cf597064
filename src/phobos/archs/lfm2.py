"""LFM2, dense and with experts: blocks of short convolutions between gates, and some of attention.
Source: Liquid AI 2025; layout as llama.cpp's converter writes it."""

from __future__ import annotations

from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import mixture, read_mixture
from phobos.program.recurrent import short_conv
from phobos.program.shape import read_shape
from phobos.program.steps import Buffer, Program


def build(gguf: GGUF) -> Program:
    """The forward pass. A block with a convolution has no attention; the last norm is named after the embedding."""
    a = gguf.architecture
    p, c = ProgramBuilder(gguf), read_shape(gguf)
    experts = read_mixture(gguf, gating="sigmoid") if gguf.get_int(f"{a}.expert_count", 0) > 0 else None
    width = gguf.get_int(f"{a}.shortconv.l_cache")
    if c.window > 0:
        raise UnsupportedModelError(f"this {a} file has windows of attention, which Phobos's {a} does not know")
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        if p.has(f"blk.{i}.shortconv.conv.weight"):
            y = convolve(p, i, h, width)
            x = p.matmul("x", y, f"blk.{i}.shortconv.out_proj.weight", c.n_embd, residual=x)
        else:
            attended = attention(p, i, h, c.heads, table, style="neox", eps=c.eps)
            x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        if experts is None or experts.is_dense(i):
            x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
        else:
            x = mixture(p, i, h, experts, out="x", residual=x)
    norm = "token_embd_norm.weight" if p.has("token_embd_norm.weight") else "output_norm.weight"
    last = p.norm("last", x, norm, c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)


def convolve(p: ProgramBuilder, i: int, h: Buffer, width: int) -> Buffer:
    """c * convolution(b * x), where one matrix gives b, c and x."""
    n, weight = h.width, f"blk.{i}.shortconv.in_proj.weight"
    b, c, x = (p.matmul(f"conv_{name}", h, weight, n, part=(k * n, 3 * n)) for k, name in enumerate("bcx"))
    y = short_conv(
        p, "conv_y", p.glu("conv_bx", b, x, "identity"), f"blk.{i}.shortconv.conv", width, has_activation=False
    )
    return p.glu("conv_gated", c, y, "identity")
