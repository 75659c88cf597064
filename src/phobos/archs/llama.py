"""The Llama family: pre-norm, rotary attention, gated SiLU. Also Mistral, SmolLM2, MiniCPM5 and others stored as
`llama`. Source: Touvron et al. 2023; layout as llama.cpp's converter writes it (query and key rows already permuted
for the "normal" rotation)."""

from __future__ import annotations

from dataclasses import dataclass

from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads, attention, attention_out, gated_mlp, output_weight
from phobos.program.builder import ProgramBuilder
from phobos.program.rope import Rope, read_rope
from phobos.program.steps import Program, RopeStyle


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
    rope: Rope
    style: RopeStyle = "normal"

    @classmethod
    def from_gguf(cls, gguf: GGUF, style: RopeStyle = "normal") -> Config:
        """Read the metadata; keys older files lack have the defaults they were made with."""
        a = gguf.architecture
        n_embd = gguf.get_int(f"{a}.embedding_length")
        n_heads = gguf.get_int(f"{a}.attention.head_count")
        k_dim = gguf.get_int(f"{a}.attention.key_length", n_embd // n_heads)
        v_dim = gguf.get_int(f"{a}.attention.value_length", k_dim)
        n_kv_heads = gguf.get_int(f"{a}.attention.head_count_kv", n_heads)
        return cls(
            n_layers=gguf.get_int(f"{a}.block_count"),
            n_embd=n_embd,
            n_ff=gguf.get_int(f"{a}.feed_forward_length"),
            n_vocab=gguf.tensors["token_embd.weight"].shape[0],
            n_ctx=gguf.get_int(f"{a}.context_length"),
            eps=gguf.get_float(f"{a}.attention.layer_norm_rms_epsilon"),
            heads=Heads(n_heads, n_kv_heads, k_dim, v_dim, gguf.get_float(f"{a}.attention.scale", k_dim**-0.5)),
            rope=read_rope(gguf, gguf.get_int(f"{a}.rope.dimension_count", k_dim)),
            style=style,
        )


def build(p: ProgramBuilder, c: Config) -> Program:
    """The forward pass."""
    x = p.embed("x", "token_embd.weight", c.n_vocab, c.n_embd)
    table = p.rope_table("rope", c.rope.frequencies, c.rope.magnitude)
    for i in range(c.n_layers):
        h = p.norm("h", x, f"blk.{i}.attn_norm.weight", c.eps)
        attended = attention(p, i, h, c.heads, table, style=c.style, eps=c.eps)
        x = attention_out(p, i, attended, "x", c.n_embd, residual=x)
        h = p.norm("h", x, f"blk.{i}.ffn_norm.weight", c.eps)
        x = gated_mlp(p, i, h, c.n_ff, "silu", out="x", residual=x)
    last = p.norm("last", x, "output_norm.weight", c.eps, outputs=True)
    logits = p.matmul("logits", last, output_weight(p), c.n_vocab)
    return p.finish(logits, c.n_ctx)
