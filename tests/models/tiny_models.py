"""Tiny random models of every architecture, made by seed: a few layers, K-quant widths, 300 tokens.

They say nothing sensible, but every number in them matters: attention is sharp enough to look far back, and rope
bends it. Golden values of llama.cpp for the float32 recipes lie in `golden/tiny.npz`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models import gguf_writer
from phobos.gguf.quants import GGMLType

N_VOCAB = 300
N_CTX = 1536
F32 = GGMLType.F32
#: Types the CPU backend packs; as `kinds` of `write_tiny_model` they are dealt out over the matrices in turn.
PACKED_TYPES = (
    GGMLType.Q4_K,
    GGMLType.Q6_K,
    GGMLType.Q5_K,
    GGMLType.Q8_0,
    GGMLType.Q4_0,
    GGMLType.Q4_1,
    GGMLType.Q5_0,
    GGMLType.Q5_1,
    GGMLType.IQ4_NL,
    GGMLType.MXFP4,
    GGMLType.F16,
    GGMLType.BF16,
    GGMLType.F32,
    GGMLType.Q2_K,
    GGMLType.Q3_K,
)
#: More of them: those of few bits, by one of each way to read codes.
SMALL_TYPES = (GGMLType.IQ4_XS, GGMLType.IQ2_XXS, GGMLType.IQ1_M)
#: The rest, whose tests are slow because every type has kernels of its own to compile.
RARE_TYPES = (
    GGMLType.NVFP4,
    GGMLType.TQ2_0,
    GGMLType.TQ1_0,
    GGMLType.Q1_0,
    GGMLType.Q2_0,
    GGMLType.IQ1_S,
    GGMLType.IQ2_XS,
    GGMLType.IQ2_S,
    GGMLType.IQ3_XXS,
    GGMLType.IQ3_S,
)


@dataclass(frozen=True)
class Recipe:
    """The shape of a tiny model. `keys` are further metadata, under the architecture's prefix."""

    name: str
    architecture: str
    seed: int
    n_layers: int = 2
    n_embd: int = 256
    n_ff: int = 512
    n_heads: int = 4
    n_kv_heads: int = 2
    k_dim: int = 64
    tied: bool = True
    rope_factors: bool = False
    adds_eos: bool = False
    keys: Mapping[str, Any] = field(default_factory=dict)


_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
_WINDOW = {"attention.sliding_window": 48, "rope.freq_base": 1e6}
RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("llama", "llama", 1, n_heads=8, k_dim=32),
        Recipe("llama-untied", "llama", 2, tied=False, keys={"rope.freq_base": 500.0}),
        Recipe("llama-linear", "llama", 3, keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        Recipe("llama-yarn", "llama", 4, keys=_YARN),
        Recipe("llama-factors", "llama", 5, rope_factors=True),
        Recipe("qwen2", "qwen2", 6, n_heads=7, n_kv_heads=1, n_embd=448, k_dim=64, n_ff=768),
        Recipe("qwen2-yarn", "qwen2", 7, keys={**_YARN, "rope.freq_base": 1e6}),
        Recipe("gemma3", "gemma3", 8, n_layers=7, n_heads=2, n_kv_heads=1, k_dim=128, keys=_WINDOW),
        Recipe(
            "gemma3-linear", "gemma3", 9, n_layers=7,
            keys={**_WINDOW, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
        ),
    )
}  # fmt: skip


def embedder(pooling: str) -> Recipe:
    """A model that says it embeds; its file also says that EOS stands behind a text."""
    number = {"mean": 1, "cls": 2, "last": 3}[pooling]
    keys = {"pooling_type": number}
    return Recipe(f"qwen2-{pooling}", "qwen2", 10, n_heads=4, n_kv_heads=2, k_dim=64, keys=keys, adds_eos=True)


def make_vocabulary() -> dict[str, Any]:
    """A SentencePiece vocabulary: three control tokens, all bytes, letters and a few words."""
    words = ["▁", *"etaoinshrdlu", "▁the", "▁a", "▁of", "▁and", "th", "he", "in", "er", "an", "re", "on", "▁to", "▁in"]
    words += [f"<|spare_{i}|>" for i in range(N_VOCAB - 3 - 256 - len(words))]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [2, 3, 3, *[6] * 256, *[5 if word.startswith("<|") else 1 for word in words]]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([-float(i) for i in range(N_VOCAB)], np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


def make_metadata(recipe: Recipe) -> dict[str, Any]:
    """All metadata of a recipe's file."""
    prefix = recipe.architecture
    own: dict[str, Any] = {
        "context_length": N_CTX,
        "embedding_length": recipe.n_embd,
        "block_count": recipe.n_layers,
        "feed_forward_length": recipe.n_ff,
        "attention.head_count": recipe.n_heads,
        "attention.head_count_kv": recipe.n_kv_heads,
        "attention.key_length": recipe.k_dim,
        "attention.value_length": recipe.k_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": recipe.k_dim,
        **recipe.keys,
    }
    keys = {f"{prefix}.{key}": value for key, value in own.items()}
    return {
        "general.architecture": prefix,
        "general.name": f"tiny {recipe.name}",
        **keys,
        **make_vocabulary(),
        **({"tokenizer.ggml.add_eos_token": True} if recipe.adds_eos else {}),
    }


def make_weights(recipe: Recipe) -> dict[str, np.ndarray]:
    """All tensors, float32, names and shapes (slowest axis first) as the architecture has them."""
    draw = np.random.default_rng(recipe.seed)
    is_gemma = recipe.architecture == "gemma3"

    def matrix(n_out: int, n_in: int, gain: float = 1.0) -> np.ndarray:
        return (draw.standard_normal((n_out, n_in)) * gain / np.sqrt(n_in)).astype(np.float32)

    def vector(n: int, mean: float = 1.0) -> np.ndarray:
        return (mean + 0.2 * draw.standard_normal(n)).astype(np.float32)

    q_width, kv_width = recipe.n_heads * recipe.k_dim, recipe.n_kv_heads * recipe.k_dim
    weights = {
        "token_embd.weight": matrix(N_VOCAB, recipe.n_embd, 4.0),
        "output_norm.weight": vector(recipe.n_embd),
    }
    if not recipe.tied:
        weights["output.weight"] = matrix(N_VOCAB, recipe.n_embd, 4.0)
    if recipe.rope_factors:
        weights["rope_freqs.weight"] = np.linspace(1, 8, recipe.k_dim // 2).astype(np.float32)
    for i in range(recipe.n_layers):
        block = {
            "attn_norm.weight": vector(recipe.n_embd),
            "attn_q.weight": matrix(q_width, recipe.n_embd, 1.25),
            "attn_k.weight": matrix(kv_width, recipe.n_embd, 1.25),
            "attn_v.weight": matrix(kv_width, recipe.n_embd),
            "attn_output.weight": matrix(recipe.n_embd, q_width),
            "ffn_norm.weight": vector(recipe.n_embd),
            "ffn_gate.weight": matrix(recipe.n_ff, recipe.n_embd),
            "ffn_up.weight": matrix(recipe.n_ff, recipe.n_embd),
            "ffn_down.weight": matrix(recipe.n_embd, recipe.n_ff),
        }
        if recipe.architecture == "qwen2":
            for part, width in (("q", q_width), ("k", kv_width), ("v", kv_width)):
                block[f"attn_{part}.bias"] = vector(width, 0.0)
        if is_gemma:
            block["attn_q_norm.weight"] = vector(recipe.k_dim, 1.5)
            block["attn_k_norm.weight"] = vector(recipe.k_dim, 1.5)
            block["post_attention_norm.weight"] = vector(recipe.n_embd)
            block["post_ffw_norm.weight"] = vector(recipe.n_embd)
        weights |= {f"blk.{i}.{name}": values for name, values in block.items()}
    return weights


def _random_matrix(kind: GGMLType, values: np.ndarray, seed: int) -> np.ndarray:
    """Random bytes in place of `values`, of about their size."""
    size = 1.0
    for _ in range(2):
        packed = gguf_writer.random_blocks(kind, *values.shape, seed, size)
        size *= float(values.std() / gguf_writer.TABLE[kind].dequantize(packed).std())
    return packed


def write_tiny_model(
    recipe: Recipe, path: Path, kinds: Sequence[GGMLType] = (F32,), metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write a model, with further `metadata` where it is given. Its matrices take `kinds` in turn (F32 where a row is
    no whole number of blocks); those of types that nothing here writes are random bytes, of the size the values should
    have."""
    tensors: dict[str, tuple[GGMLType, np.ndarray]] = {}
    turn = 0
    for name, values in make_weights(recipe).items():
        kind = F32
        if values.ndim == 2:
            kind = kinds[turn % len(kinds)]
            turn += 1
            if values.shape[-1] % gguf_writer.TABLE[kind].block:
                kind = F32
        can_write = gguf_writer.TABLE[kind].quantize is not None
        tensors[name] = (kind, values if can_write else _random_matrix(kind, values, turn))
    return gguf_writer.write_gguf(path, {**make_metadata(recipe), **(metadata or {})}, tensors)


def make_tokens(n: int, seed: int = 0) -> np.ndarray:
    """Random tokens [n] int32 of the tiny vocabulary."""
    return np.random.default_rng(seed).integers(0, N_VOCAB, n, dtype=np.int32)
