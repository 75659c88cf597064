"""The hyperparameters nearly every decoder has, under the file's own names."""

from __future__ import annotations

from dataclasses import dataclass

from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads
from phobos.program.rope import Rope, read_rope


@dataclass(frozen=True)
class Shape:
    """What `read_shape` found. `rope` covers `rope.dimension_count` dimensions, all of a key's where that is absent."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_vocab: int
    n_ctx: int
    eps: float
    heads: Heads
    rope: Rope
    window: int


def read_shape(
    gguf: GGUF,
    *,
    scale: float | None = None,
    theta: float = 10000.0,
    n_kv_heads: int | None = None,
    n_ff: int | None = None,
) -> Shape:
    """Keys older files lack have the defaults they were made with. `scale` of scores: the file's, else this, else
    one over the root of the key length; `theta`: the rope base of files that do not say. `n_kv_heads` and `n_ff`
    stand in for keys that hold a number for each block; the largest counts where not given."""
    a = gguf.architecture
    n_embd = gguf.get_int(f"{a}.embedding_length")
    n_heads = max(gguf.get_ints(f"{a}.attention.head_count"), default=0)
    if n_heads < 1:
        raise UnsupportedModelError(f"the file says {a}.attention.head_count is {n_heads}: a model without attention")
    k_dim = gguf.get_int(f"{a}.attention.key_length", n_embd // n_heads)
    rms_key = f"{a}.attention.layer_norm_rms_epsilon"
    eps = gguf.get_float(rms_key if rms_key in gguf.metadata else f"{a}.attention.layer_norm_epsilon")
    file_scale = gguf.get_float(f"{a}.attention.scale", 0.0)
    return Shape(
        n_layers=gguf.get_int(f"{a}.block_count"),
        n_embd=n_embd,
        n_ff=max(gguf.get_ints(f"{a}.feed_forward_length", [0]), default=0) if n_ff is None else n_ff,
        n_vocab=gguf.tensors["token_embd.weight"].shape[0],
        n_ctx=gguf.get_int(f"{a}.context_length"),
        eps=eps,
        heads=Heads(
            n_heads,
            max(gguf.get_ints(f"{a}.attention.head_count_kv", [n_heads]), default=0)
            if n_kv_heads is None
            else n_kv_heads,
            k_dim,
            gguf.get_int(f"{a}.attention.value_length", k_dim),
            file_scale or scale or k_dim**-0.5,
        ),
        rope=read_rope(gguf, gguf.get_int(f"{a}.rope.dimension_count", k_dim), default_theta=theta),
        window=gguf.get_int(f"{a}.attention.sliding_window", 0),
    )
