"""The hyperparameters nearly every decoder has, under the file's own names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from phobos.errors import UnsupportedModelError
from phobos.gguf.reader import GGUF
from phobos.program.blocks import Heads
from phobos.program.rope import Rope, read_rope

T = TypeVar("T")


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
        rope=read_rope(gguf, read_rotated(gguf, k_dim), default_theta=theta),
        window=gguf.get_int(f"{a}.attention.sliding_window", 0),
    )


def read_rotated(gguf: GGUF, k_dim: int, key: str = "rope.dimension_count", default: int | None = None) -> int:
    """How many of a head's `k_dim` values are rotated: an even number, and no more than there are. Files that do not
    say rotate `default`, else all of them."""
    n_rot = gguf.get_int(f"{gguf.architecture}.{key}", k_dim if default is None else default)
    if n_rot % 2 or n_rot > k_dim:
        raise UnsupportedModelError(
            f"{gguf.architecture}.{key} is {n_rot} where heads have {k_dim} values: it must be even and no more than "
            "that, so fetch a sound conversion of the model"
        )
    return n_rot


def each_block(gguf: GGUF, key: str, values: Sequence[T], n_layers: int) -> tuple[T, ...]:
    """A value for each of `n_layers` blocks of what `key` gave; a single one stands for all."""
    if len(values) == 1:
        return (values[0],) * n_layers
    if len(values) != n_layers:
        raise UnsupportedModelError(
            f"{gguf.architecture}.{key} has {len(values)} values for {n_layers} blocks: fetch a sound conversion"
        )
    return tuple(values)


def count_blocks(gguf: GGUF, n_layers: int) -> int:
    """Blocks without those at the end that only draft tokens."""
    n_drafts = gguf.get_int(f"{gguf.architecture}.nextn_predict_layers", 0)
    if n_drafts >= n_layers:
        raise UnsupportedModelError(
            f"the file says that {n_drafts} of its {n_layers} blocks draft tokens: fetch a sound conversion"
        )
    return n_layers - n_drafts
