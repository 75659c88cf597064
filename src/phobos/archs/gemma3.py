"""Gemma 3 (text): norms before and after each half, per-head query and key norms, GELU gates, five windowed layers
to one full one, each kind with its own rope. Source: Gemma Team 2025 (Gemma 3 technical report)."""

from __future__ import annotations

from dataclasses import dataclass

from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads, attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.rope import Rope, plain_frequencies, read_rope
from phobos.program.steps import Program

WINDOW_PATTERN = 6  # every sixth layer is full
WINDOW_THETA = 10000.0


@dataclass(frozen=True)
class Config:
    """Hyperparameters under the file's own names."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_vocab: int
    n_ctx: int
    eps: float
    heads: Heads
    window: int
    pattern: int
    rope: Rope
    window_rope: Rope
    logit_cap: float

    @classmethod
    def from_gguf(cls, gguf: GGUF) -> Config:
        """Read the metadata."""
        a = gguf.architecture
        n_embd = gguf.get_int(f"{a}.embedding_length")
        n_heads = gguf.get_int(f"{a}.attention.head_count")
        k_dim = gguf.get_int(f"{a}.attention.key_length", n_embd // n_heads)
        n_layers = gguf.get_int(f"{a}.block_count")
        # The 27B scales by its width a head instead of its key length; the file does not say so.
        scale = (n_embd / n_heads) ** -0.5 if n_layers == 62 else k_dim**-0.5
        theta = gguf.get_float(f"{a}.rope.freq_base_swa", WINDOW_THETA)
        return cls(
            n_layers=n_layers,
            n_embd=n_embd,
            n_ff=gguf.get_int(f"{a}.feed_forward_length"),
            n_vocab=gguf.tensors["token_embd.weight"].shape[0],
            n_ctx=gguf.get_int(f"{a}.context_length"),
            eps=gguf.get_float(f"{a}.attention.layer_norm_rms_epsilon"),
            heads=Heads(
                n_heads,
                gguf.get_int(f"{a}.attention.head_count_kv"),
                k_dim,
                gguf.get_int(f"{a}.attention.value_length", k_dim),
                scale,
            ),
            window=gguf.get_int(f"{a}.attention.sliding_window", 0),
            pattern=gguf.get_int(f"{a}.attention.sliding_window_pattern", WINDOW_PATTERN),
            rope=read_rope(gguf, k_dim, default_theta=1_000_000.0),
            window_rope=Rope(tuple(float(f) for f in plain_frequencies(k_dim, theta)), 1.0),
            logit_cap=gguf.get_float(f"{a}.final_logit_softcapping", 0.0),
        )


def build(gguf: GGUF) -> Program:
    """The forward pass."""
    p, c = ProgramBuilder(gguf), Config.from_gguf(gguf)
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd, scale=c.n_embd**0.5)
    full = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    windowed = p.rope_table("window_rope", c.window_rope.frequencies)
    for i in range(c.n_layers):
        is_full = c.window == 0 or (i + 1) % c.pattern == 0
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        attended = attention(
            p,
            i,
            h,
            c.heads,
            full if is_full else windowed,
            style="neox",
            window=0 if is_full else c.window,
            eps=c.eps,
        )
        y = attention_out(p, i, attended, "y", c.n_embd, residual=None)
        x = p.norm("x", y, f"blk.{i}.post_attention_norm.weight", c.eps, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        y = gated_mlp(p, i, h, c.n_ff, "gelu_tanh", out="y", residual=None)
        x = p.norm("x", y, f"blk.{i}.post_ffw_norm.weight", c.eps, residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx, soft_cap=c.logit_cap)
