"""Qwen3-Next, Qwen3.5 and Qwen3.6, dense and with experts: three blocks of gated delta net, then one of gated
attention. Source: Qwen Team 2025 and 2026; layout as llama.cpp's converter writes it (norm weights with their 1 added,
decay rates negated and exponentiated)."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.program.blocks import attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.experts import mixture, read_mixture
from phobos.program.recurrent import Recurrence, gated_attention, gated_delta, read_recurrence, short_conv
from phobos.program.shape import count_blocks, read_shape
from phobos.program.steps import Buffer, Program, Splice


def build(gguf: GGUF) -> Program:
    """The forward pass. A block with a convolution is recurrent."""
    a = gguf.architecture
    p, c, r = ProgramBuilder(gguf), read_shape(gguf), read_recurrence(gguf)
    experts = read_mixture(gguf) if gguf.get_int(f"{a}.expert_count", 0) > 0 else None
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(count_blocks(gguf, c.n_layers)):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        if p.has(f"blk.{i}.ssm_conv1d.weight"):
            x = p.matmul("x", delta_net(p, i, h, r, c.eps), f"blk.{i}.ssm_out.weight", c.n_embd, residual=x)
        else:
            attended = gated_attention(p, i, h, c.heads, table, style="neox", eps=c.eps)
            x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.post_attention_norm.weight", c.eps)
        if experts is not None:
            x = mixture(p, i, h, experts, out="x", residual=x)
        else:
            x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)


def delta_net(p: ProgramBuilder, i: int, h: Buffer, r: Recurrence, eps: float) -> Buffer:
    """The block before its output matrix. Qwen3-Next's neighbouring heads share a key; later files have them tiled."""
    keys = r.n_groups * r.state_dim
    if p.has(f"blk.{i}.ssm_in.weight"):
        mixed, z = split_fused(p, i, h, r)
    else:
        mixed = p.matmul("delta_in", h, f"blk.{i}.attn_qkv.weight", 2 * keys + r.n_inner)
        z = p.matmul("delta_z", h, f"blk.{i}.attn_gate.weight", r.n_inner)
    mixed = short_conv(p, "delta_mixed", mixed, f"blk.{i}.ssm_conv1d", r.width)
    is_next = p.gguf.architecture == "qwen3next"
    if is_next:
        beta, decay = split_pairs(p, i, h, r)
    else:
        beta = p.matmul("delta_beta", h, f"blk.{i}.ssm_beta.weight", r.n_heads)
        decay = p.matmul("delta_decay", h, f"blk.{i}.ssm_alpha.weight", r.n_heads)
    parts, starts = (mixed, mixed, mixed), (0, keys, 2 * keys)
    y = gated_delta(p, i, parts, starts, decay, beta, r, eps, is_tiled=not is_next)
    return p.glu("delta_gated", z, y, "silu")


def split_pairs(p: ProgramBuilder, i: int, h: Buffer, r: Recurrence) -> tuple[Buffer, Buffer]:
    """Strengths and decays, which one matrix gives by turns: for each key head those of its heads."""
    n, shared = r.n_heads, r.n_heads // r.n_groups
    both = p.matmul("delta_both", h, f"blk.{i}.ssm_ba.weight", 2 * n)
    beta, decay = p.buffer("delta_beta", n), p.buffer("delta_decay", n)
    for out, start in ((beta, 0), (decay, shared)):
        p.add(Splice(out, both, r.n_groups, shared, start, 2 * shared, 0, shared))
    return beta, decay


def split_fused(p: ProgramBuilder, i: int, h: Buffer, r: Recurrence) -> tuple[Buffer, Buffer]:
    """Queries, keys and values, and the gate, of files that have them in one matrix by key head."""
    n, k_dim, shared = r.n_groups, r.state_dim, r.n_inner // r.n_groups
    stride = 2 * k_dim + 2 * shared
    both = p.matmul("delta_fused", h, f"blk.{i}.ssm_in.weight", n * stride)
    mixed, z = p.buffer("delta_in", 2 * n * k_dim + r.n_inner), p.buffer("delta_z", r.n_inner)
    p.add(Splice(mixed, both, n, k_dim, 0, stride, 0, k_dim))
    p.add(Splice(mixed, both, n, k_dim, k_dim, stride, n * k_dim, k_dim))
    p.add(Splice(mixed, both, n, shared, 2 * k_dim, stride, 2 * n * k_dim, shared))
    p.add(Splice(z, both, n, shared, 2 * k_dim + shared, stride, 0, shared))
    return mixed, z
