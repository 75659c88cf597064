"""What Gemma 3n and Gemma 4 share: embeddings of each layer, and attention whose later blocks read the caches of
earlier ones. Source: Gemma Team 2025 and 2026."""

from __future__ import annotations

from phobos.errors import UnsupportedModelError
from phobos.program.blocks import Heads
from phobos.program.builder import ProgramBuilder
from phobos.program.shape import Shape
from phobos.program.steps import Attention, Buffer, CacheLayer, HeadNorm, RotateStore, Splice


def layer_inputs(p: ProgramBuilder, x: Buffer, s: Shape, width: int) -> Buffer:
    """For every layer a vector of `width`: from the token, and from the embedding by a matrix."""
    total = s.n_layers * width
    token = p.embed("layer_tokens", "per_layer_token_embd.weight", s.n_vocab, total, scale=width**0.5)
    projected = p.matmul("layer_projected", x, "per_layer_model_proj.weight", total, scale=s.n_embd**-0.5)
    normed = p.buffer("layer_normed", total)
    p.add(HeadNorm(normed, projected, s.n_layers, p.weight("per_layer_proj_norm.weight", width), s.eps))
    return p.add_rows("layer_inputs", normed, token, scale=0.5**0.5)


def gate_layer_input(p: ProgramBuilder, i: int, x: Buffer, inputs: Buffer, width: int) -> Buffer:
    """What block `i`'s vector gives, gated by x, before its norm."""
    mine = p.buffer("layer_input", width)
    p.add(Splice(mine, inputs, 1, width, i * width, 0, 0, 0))
    gate = p.matmul("layer_gate", x, f"blk.{i}.inp_gate.weight", width)
    gated = p.glu("layer_gated", gate, mine, "gelu_tanh")
    return p.matmul("y", gated, f"blk.{i}.proj.weight", x.width)


class SharedCaches:
    """Attention over a cache of the block's own for the first `n_own` blocks, then over the last own one of its kind.
    Values are normed; keys stand in for values where a block has no matrix for them."""

    def __init__(self, p: ProgramBuilder, n_own: int, eps: float) -> None:
        if n_own < 2:
            raise UnsupportedModelError(
                f"the file leaves {max(0, n_own)} blocks a cache of their own, where others read a windowed and a full "
                "one: fetch a sound conversion of the model"
            )
        self._p = p
        self._n_own = n_own
        self._eps = eps
        self._layers: list[CacheLayer] = []

    def attend(self, i: int, h: Buffer, heads: Heads, table: Buffer, window: int) -> Buffer:
        """Block `i` before its output matrix; `window` is 0 for all positions."""
        p, kind = self._p, "windowed" if window > 0 else "full"
        n, n_kv, dim = heads.n_heads, heads.n_kv_heads, heads.k_dim
        q = p.matmul(f"q_{kind}", h, f"blk.{i}.attn_q.weight", n * dim)
        q_norm = p.weight(f"blk.{i}.attn_q_norm.weight", dim)
        if i < self._n_own:
            layer = p.cache_layer(n_kv, dim, dim, window)
            self._layers.append(layer)
            k = p.matmul(f"k_{kind}", h, f"blk.{i}.attn_k.weight", n_kv * dim)
            v = k
            if p.has(f"blk.{i}.attn_v.weight"):
                v = p.matmul(f"v_{kind}", h, f"blk.{i}.attn_v.weight", n_kv * dim)
            normed = p.buffer(f"v_normed_{kind}", n_kv * dim)
            p.add(HeadNorm(normed, v, n_kv, None, self._eps))
            k_norm = p.weight(f"blk.{i}.attn_k_norm.weight", dim)
            p.add(RotateStore(q, k, normed, table, layer, n, "neox", q_norm, k_norm, self._eps))
        else:
            layer = self._layers[self._n_own - (2 if window > 0 else 1)]
            p.add(RotateStore(q, None, None, table, layer, n, "neox", q_norm, None, self._eps))
        out = p.buffer(f"attended_{kind}", n * dim)
        p.add(Attention(out, q, layer, n, heads.scale))
        return out
