"""Kimi Linear: blocks of Kimi delta attention, whose states decay row by row, between some of latent attention without
positions. Source: Kimi Team 2025; layout as llama.cpp's converter writes it."""

from __future__ import annotations

from phobos.archs.deepseek2 import read_latent
from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads, attend, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import mixture, read_mixture
from phobos.program.latent import attend_latent, project_plain
from phobos.program.recurrent import Recurrence, gated_delta, short_conv
from phobos.program.shape import read_shape
from phobos.program.steps import Buffer, Program


def build(gguf: GGUF) -> Program:
    """The forward pass. A block with convolutions is recurrent."""
    p, c, m = ProgramBuilder(gguf), read_shape(gguf), read_latent(gguf)
    experts = read_mixture(gguf, gating="sigmoid")
    heads = Heads(m.n_heads, m.n_heads, m.k_dim, m.v_dim, m.scale)
    n, dim = m.n_heads, gguf.get_int("kimi-linear.kda.head_dim")
    recurrence = Recurrence(gguf.get_int("kimi-linear.ssm.conv_kernel"), n * dim, n, n, dim)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        if p.has(f"blk.{i}.ssm_conv1d_q.weight"):
            attended = delta_attention(p, i, h, recurrence, c.eps)
        elif p.has(f"blk.{i}.attn_k_b.weight"):
            attended = attend_latent(p, i, h, m, None, c.eps)
        else:
            q, k, v = project_plain(p, i, h, m, c.eps)
            attended = attend(p, i, q, k, v, heads, None, style=m.style, has_head_norms=False)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        if experts.is_dense(i):
            x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
        else:
            x = mixture(p, i, h, experts, out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)


def delta_attention(p: ProgramBuilder, i: int, h: Buffer, r: Recurrence, eps: float) -> Buffer:
    """The block before its output matrix: decays and gate come from the input through narrow vectors."""
    n, low = r.n_inner, r.head_dim

    def convolve(name: str) -> Buffer:
        mixed = p.matmul(f"delta_{name}_in", h, f"blk.{i}.attn_{name}.weight", n)
        return short_conv(p, f"delta_{name}", mixed, f"blk.{i}.ssm_conv1d_{name}", r.width)

    def project(name: str, out: str) -> Buffer:
        narrow = p.matmul("delta_low", h, f"blk.{i}.ssm_{name}_a.weight", low)
        return p.matmul(out, narrow, f"blk.{i}.ssm_{name}_b.weight", n)

    parts = (convolve("q"), convolve("k"), convolve("v"))
    decay, gate = project("f", "delta_decay"), project("g", "delta_gate")
    beta = p.matmul("delta_beta", h, f"blk.{i}.ssm_beta.weight", r.n_heads)
    y = gated_delta(p, i, parts, (0, 0, 0), decay, beta, r, eps)
    return p.glu("delta_gated", gate, y, "sigmoid")
