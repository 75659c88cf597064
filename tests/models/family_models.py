"""Tiny random models of the families beside `tiny_models.py`'s, every optional tensor present once.

A recipe names the tensors of its blocks; their shapes follow from their names unless it gives others. Golden values of
llama.cpp lie in `golden/families.npz`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models import gguf_writer
from models.family_recipe import (
    ATTENTION,
    BIASES,
    EXPERTS,
    GEMMA4,
    GEMMA4_OWN,
    HEAD_NORMS,
    LATENT,
    LAYER_NORM,
    LAYER_NORM_BIASES,
    LAYER_NORM_TOP,
    LLAMA,
    LONG_ROPE,
    MLA,
    MLA_SHAPES,
    MLP,
    MLP_BIASES,
    NORMS,
    OUT,
    PER_LAYER,
    PLAIN_MLP,
    POSTS,
    QKV,
    QKV_BIAS,
    SHARED,
    TOP_2,
    YARN,
    Family,
)
from models.hybrid_models import HYBRIDS
from models.tiny_models import N_CTX, N_VOCAB, RECIPES, make_vocabulary, write_tiny_model
from phobos.gguf.quants import GGMLType

F32 = GGMLType.F32

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("ernie4_5", "ernie4_5", (*LLAMA, *QKV_BIAS)),
        Family("exaone4", "exaone4", (*QKV, *OUT, *MLP, *HEAD_NORMS, *POSTS)),
        Family("gemma", "gemma", LLAMA, n_kv_heads=1),
        Family(
            "gemma2", "gemma2", (*LLAMA, *POSTS), n_layers=4,
            keys={
                "attention.sliding_window": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0,
            },
        ),
        Family(
            "glm4", "glm4", (*NORMS, *QKV, *QKV_BIAS, *OUT, "ffn_up.weight", "ffn_down.weight", *POSTS), n_rot=32,
            has_output=True, shapes={"ffn_up.weight": (1024, 256)},
        ),
        Family(
            "gpt2", "gpt2",
            (*NORMS, *LAYER_NORM_BIASES, "attn_qkv.weight", "attn_qkv.bias", *OUT, "attn_output.bias", *PLAIN_MLP),
            n_kv_heads=4, top=(*LAYER_NORM_TOP, "position_embd.weight"), keys=LAYER_NORM,
        ),
        Family(
            "granite", "granite", (*LLAMA, "attn_output.bias", *MLP_BIASES),
            keys={
                "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 4.0, "attention.scale": 0.2,
            },
        ),
        Family(
            "minicpm", "minicpm", LLAMA, n_embd=512, has_output=True,
            keys={"embedding_scale": 2.0, "residual_scale": 0.7, "logit_scale": 2.0},
        ),
        Family("minicpm-old", "minicpm", LLAMA, n_embd=512),
        Family(
            "minicpm3", "minicpm3", (*NORMS, *LATENT, *OUT, *MLP), n_embd=512, n_kv_heads=4, k_dim=96, n_rot=32,
            keys={"attention.q_lora_rank": 128, "attention.kv_lora_rank": 64},
            shapes={
                "attn_q_a.weight": (128, 512), "attn_q_a_norm.weight": (128,), "attn_q_b.weight": (384, 128),
                "attn_kv_a_mqa.weight": (96, 512), "attn_kv_a_norm.weight": (64,), "attn_kv_b.weight": (512, 64),
            },
        ),
        Family(
            "mistral3", "mistral3", LLAMA,
            keys={**YARN, "attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 1.0},
        ),
        Family("olmo2", "olmo2", (*QKV, *OUT, *MLP, *HEAD_NORMS, *POSTS), has_output=True,
               shapes={"attn_q_norm.weight": (256,), "attn_k_norm.weight": (128,)}),
        Family(
            "olmo3", "olmo2", (*QKV, *OUT, *MLP, *HEAD_NORMS, *POSTS), n_layers=5, has_output=True,
            keys={**YARN, "attention.sliding_window": 24},
            shapes={"attn_q_norm.weight": (256,), "attn_k_norm.weight": (128,)},
        ),
        Family(
            "phi3", "phi3", (*NORMS, "attn_qkv.weight", *OUT, "ffn_up.weight", "ffn_down.weight"), n_kv_heads=4,
            has_output=True, top=("token_embd.weight", "output_norm.weight", "rope_factors_long.weight",
                                  "rope_factors_short.weight"),
            keys=LONG_ROPE, shapes={"ffn_up.weight": (1024, 256)},
        ),
        Family("qwen3", "qwen3", (*LLAMA, *HEAD_NORMS), n_heads=8),
        Family("hunyuan-dense", "hunyuan-dense", (*LLAMA, *HEAD_NORMS)),
        Family("mixtral", "llama", (*ATTENTION, *EXPERTS), n_experts=8, n_ff=128, keys=TOP_2),
        Family("qwen2moe", "qwen2moe", (*ATTENTION, *QKV_BIAS, *EXPERTS, *SHARED, "ffn_gate_inp_shexp.weight"),
               n_experts=8, has_output=True, keys={**TOP_2, "expert_shared_feed_forward_length": 256},
               shapes={"ffn_gate_inp_shexp.weight": (256,)}),
        Family("qwen3moe", "qwen3moe", (*ATTENTION, *HEAD_NORMS, *EXPERTS), n_experts=24, has_output=True,
               keys={"expert_count": 24, "expert_used_count": 5, "expert_feed_forward_length": 128}),
        Family("olmoe", "olmoe", (*ATTENTION, *HEAD_NORMS, *EXPERTS), n_experts=8, n_ff=128, has_output=True,
               n_kv_heads=4, keys=TOP_2, shapes={"attn_q_norm.weight": (256,), "attn_k_norm.weight": (256,)}),
        Family("granitemoe", "granitemoe", (*ATTENTION, *EXPERTS, *SHARED), n_experts=8, n_ff=128,
               keys={**TOP_2, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 4.0,
                     "attention.scale": 0.2, "expert_shared_feed_forward_length": 256}),
        Family(
            "glm4moe", "glm4moe",
            ("attn_norm.weight", "post_attention_norm.weight", *QKV, *QKV_BIAS, *OUT, *HEAD_NORMS, *EXPERTS,
             *SHARED, "exp_probs_b.bias"),
            n_layers=3, n_rot=32, n_experts=8, n_ff_shared=128, has_output=True,
            blocks={0: ("attn_norm.weight", "post_attention_norm.weight", *QKV, *QKV_BIAS, *OUT, *HEAD_NORMS,
                        *MLP)},
            keys={**TOP_2, "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_weights_scale": 1.7,
                  "expert_weights_norm": True, "expert_gating_func": 2},
        ),
        Family(
            "gpt-oss", "gpt-oss",
            ("attn_norm.weight", "post_attention_norm.weight", *QKV, *BIASES, *OUT, "attn_sinks.weight", *EXPERTS,
             *(name.replace("weight", "bias") for name in EXPERTS)),
            n_experts=8, has_output=True,
            keys={**YARN, **TOP_2, "attention.sliding_window": 24},
            mixed=(GGMLType.Q8_0, GGMLType.MXFP4, GGMLType.IQ4_NL),
        ),
        Family(
            "deepseek2", "deepseek2", (*NORMS, *MLA, *OUT, *EXPERTS, *SHARED, "exp_probs_b.bias"), n_layers=3,
            n_kv_heads=1, k_dim=160, v_dim=128, n_rot=32, n_experts=16, n_ff_shared=128, has_output=True,
            blocks={0: (*NORMS, *MLA, *OUT, *MLP)},
            keys={
                **YARN, "rope.scaling.yarn_log_multiplier": 0.1, "attention.q_lora_rank": 128,
                "attention.kv_lora_rank": 128, "attention.key_length_mla": 96, "attention.value_length_mla": 64,
                "expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 128, "expert_group_count": 4,
                "expert_group_used_count": 2, "expert_shared_count": 1, "leading_dense_block_count": 1,
                "expert_weights_scale": 1.7, "expert_weights_norm": True, "expert_gating_func": 2,
            },
            shapes={**MLA_SHAPES, "attn_q_a.weight": (128, 256), "attn_q_a_norm.weight": (128,),
                    "attn_q_b.weight": (384, 128)},
        ),
        Family(
            "deepseek2-old", "deepseek2", (*NORMS, *LATENT, *OUT, *EXPERTS, *SHARED), n_kv_heads=4, k_dim=96,
            n_rot=32, n_experts=8, has_output=True, blocks={0: (*NORMS, *LATENT, *OUT, *MLP)},
            keys={**TOP_2, "attention.q_lora_rank": 128, "attention.kv_lora_rank": 128, "expert_shared_count": 2,
                  "leading_dense_block_count": 1},
            shapes={**MLA_SHAPES, "attn_q_a.weight": (128, 256), "attn_q_a_norm.weight": (128,),
                    "attn_q_b.weight": (384, 128), "attn_kv_b.weight": (512, 128)},
        ),
        Family(
            "gemma4", "gemma4", GEMMA4, n_layers=7, n_kv_heads=2, k_dim=128, v_dim=128, n_rot=128,
            top=("token_embd.weight", "output_norm.weight", "rope_freqs.weight", *PER_LAYER),
            blocks={0: GEMMA4_OWN, 1: GEMMA4_OWN, 2: tuple(n for n in GEMMA4_OWN if "attn_v" not in n)},
            keys={
                "attention.sliding_window": 24, "attention.sliding_window_pattern": [x % 3 != 2 for x in range(7)],
                "attention.key_length": 128, "attention.value_length": 128, "attention.key_length_swa": 64,
                "attention.value_length_swa": 64, "rope.dimension_count_swa": 64, "rope.freq_base": 1e6,
                "rope.freq_base_swa": 1e4, "attention.shared_kv_layers": 4, "embedding_length_per_layer_input": 32,
                "final_logit_softcapping": 30.0, "feed_forward_length": [512, 512, 512, 512, 256, 256, 256],
            },
            shapes={
                **{f"blk.{i}.attn_{p}.weight": (n * 64, 256) for i in (0, 1, 3, 4, 6) for p, n in
                   (("q", 4), ("k", 2), ("v", 2))},
                **{f"blk.{i}.attn_output.weight": (256, 4 * 64) for i in (0, 1, 3, 4, 6)},
                **{f"blk.{i}.attn_{p}_norm.weight": (64,) for i in (0, 1, 3, 4, 6) for p in "qk"},
                **{f"blk.{i}.ffn_{p}.weight": (256, 256) for i in (4, 5, 6) for p in ("gate", "up", "down")},
                "per_layer_token_embd.weight": (N_VOCAB, 224), "per_layer_model_proj.weight": (224, 256),
                "per_layer_proj_norm.weight": (32,), "inp_gate.weight": (32, 256), "proj.weight": (256, 32),
                "layer_output_scale.weight": (1,),
            },
        ),
        Family("seed_oss", "seed_oss", (
            "attn_norm.weight", "post_attention_norm.weight", *QKV, *QKV_BIAS, *OUT, *MLP,
        )),
        Family("smollm3", "smollm3", LLAMA, n_layers=5),
        Family(
            "stablelm", "stablelm", (*LLAMA, *LAYER_NORM_BIASES, *QKV_BIAS), n_rot=16, n_kv_heads=4, has_output=True,
            top=LAYER_NORM_TOP, keys=LAYER_NORM,
        ),
        Family(
            "stablelm-parallel", "stablelm", ("attn_norm.weight", "attn_norm.bias", *QKV, *OUT, *MLP), n_rot=16,
            n_kv_heads=4, has_output=True, top=LAYER_NORM_TOP, keys=LAYER_NORM,
        ),
        Family(
            "starcoder2", "starcoder2", (*NORMS, *LAYER_NORM_BIASES, *QKV, *BIASES[:3], *OUT, *BIASES[3:],
                                         *PLAIN_MLP),
            top=LAYER_NORM_TOP, keys=LAYER_NORM,
        ),
        *HYBRIDS,
    )
}  # fmt: skip


def make_metadata(family: Family) -> dict[str, Any]:
    """All metadata of a family's file."""
    own: dict[str, Any] = {
        "context_length": N_CTX,
        "embedding_length": family.n_embd,
        "block_count": family.n_layers,
        "feed_forward_length": family.n_ff,
        "attention.head_count": family.n_heads,
        "attention.head_count_kv": family.n_kv_heads,
        "attention.key_length": family.k_dim,
        "attention.value_length": family.v_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": family.n_rot,
        **family.keys,
    }
    keys = {f"{family.architecture}.{key}": value for key, value in own.items() if value is not None}
    general = {"general.architecture": family.architecture, "general.name": "a tiny family"}
    return {**general, **keys, **make_vocabulary()}


def make_weights(family: Family) -> dict[str, np.ndarray]:
    """All tensors, float32, in the order of the recipe; each name has its own draws."""
    top = (*family.top, "output.weight") if family.has_output else family.top
    names = list(top)
    for i in range(family.n_layers):
        names += [f"blk.{i}.{name}" for name in family.blocks.get(i, family.block)]
    return {name: _draw(family, name) for name in names}


def _draw(family: Family, name: str) -> np.ndarray:
    draw = np.random.default_rng(zlib.crc32(f"{family.name} {name}".encode()))
    short = name.split(".", 2)[2] if name.startswith("blk.") else name
    if short.startswith("rope_f"):
        longest = 8 if "long" in short else 2
        return np.linspace(1, longest, family.n_rot // 2).astype(np.float32)
    shape = family.shapes.get(name) or family.shape_of(short)
    values = draw.standard_normal(shape)
    if short == "ssm_a":
        values = -np.exp(1.5 * values - 2)  # some heads forget at once, some look far back
    elif ("norm" in short or "scale" in short) and not short.endswith(".bias"):
        values = 1 + 0.2 * values
    elif "attn_sinks" in short:
        values = 1 + values
    elif short.endswith(".bias") or len(shape) == 1:
        values = 0.2 * values
    else:
        gain = {"token_embd": 4, "output": 4, "attn_q": 1.3, "attn_k": 1.3, "position_embd": 4, "attn_qkv": 1.3}
        values *= gain.get(short.partition(".")[0], 1) / np.sqrt(shape[-1])
    return (values * family.gains.get(short, 1.0)).astype(np.float32)


def write_family_model(family: Family, path: Path, kinds: Sequence[GGMLType] = (F32,)) -> Path:
    """Write a model; its matrices take `kinds` in turn (F32 where a row is no whole number of blocks)."""
    tensors: dict[str, tuple[GGMLType, np.ndarray]] = {}
    turn = 0
    for name, values in make_weights(family).items():
        kind = F32
        if (
            values.ndim > 1
            and "position_embd" not in name
            and "ffn_gate_inp" not in name
            and not re.search(r"conv1d|conv\.conv|ssm_[ad]$|ssm_norm", name)
            and not name.endswith(".bias")
        ):
            kind = kinds[turn % len(kinds)]
            turn += 1
            if values.shape[-1] % gguf_writer.TABLE[kind].block:
                kind = F32
        tensors[name] = (kind, values)
    return gguf_writer.write_gguf(path, make_metadata(family), tensors)


def write_quantized_twin(name: str, path: Path) -> Path:
    """A recipe's or a family's model, in mixed types."""
    if name in RECIPES:
        return write_tiny_model(RECIPES[name], path, (GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.Q6_K))
    return write_family_model(FAMILIES[name], path, FAMILIES[name].mixed)
