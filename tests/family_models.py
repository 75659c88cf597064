"""Tiny random models of the families beside `tiny_models.py`'s, every optional tensor present once.

A recipe names the tensors of its blocks; their shapes follow from their names unless it gives others. Golden values of
llama.cpp lie in `golden/families.npz`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import gguf_writer
from phobos.gguf.quants import GGMLType
from tiny_models import N_CTX, N_VOCAB, make_vocabulary

F32 = GGMLType.F32
#: Types dealt out over the matrices of a quantized twin, in turn.
MIXED = (GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.Q6_K, GGMLType.Q5_1, GGMLType.Q4_0, GGMLType.F16)


@dataclass(frozen=True)
class Family:
    """The shape of a tiny model. `keys` are further metadata under the architecture's prefix (None takes one away),
    `block` the tensors of each block, `blocks` of those that differ, `shapes` what does not follow from a name."""

    name: str
    architecture: str
    block: tuple[str, ...]
    n_layers: int = 2
    n_embd: int = 256
    n_ff: int = 512
    n_heads: int = 4
    n_kv_heads: int = 2
    k_dim: int = 64
    v_dim: int = 64
    n_rot: int = 64
    n_experts: int = 0
    n_ff_expert: int = 128
    n_ff_shared: int = 256
    has_output: bool = False
    mixed: tuple[GGMLType, ...] = MIXED
    top: tuple[str, ...] = ("token_embd.weight", "output_norm.weight")
    blocks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor by its name without `blk.N.`."""
        if name in self.shapes:
            return self.shapes[name]
        e, f = self.n_embd, self.n_ff
        q, k, v = self.n_heads * self.k_dim, self.n_kv_heads * self.k_dim, self.n_kv_heads * self.v_dim
        rows, columns = {
            "token_embd": (N_VOCAB, e),
            "output": (N_VOCAB, e),
            "position_embd": (N_CTX, e),
            "attn_q": (q, e),
            "attn_k": (k, e),
            "attn_v": (v, e),
            "attn_qkv": (q + k + v, e),
            "attn_output": (e, self.n_heads * self.v_dim),
            "ffn_gate": (f, e),
            "ffn_up": (f, e),
            "ffn_down": (e, f),
            "ffn_gate_inp": (self.n_experts, e),
            "ffn_gate_inp_shexp": (1, e),
            "ffn_gate_shexp": (self.n_ff_shared, e),
            "ffn_up_shexp": (self.n_ff_shared, e),
            "ffn_down_shexp": (e, self.n_ff_shared),
            "ffn_gate_exps": (self.n_ff_expert, e),
            "ffn_up_exps": (self.n_ff_expert, e),
            "ffn_down_exps": (e, self.n_ff_expert),
            "exp_probs_b": (self.n_experts, 0),
            "attn_sinks": (self.n_heads, 0),
            "attn_q_norm": (0, self.k_dim),
            "attn_k_norm": (0, self.k_dim),
        }.get(name.partition(".")[0], (e, e))
        if "_exps" in name:
            return (self.n_experts, rows) if name.endswith(".bias") else (self.n_experts, rows, columns)
        if name.endswith(".bias") or name.startswith("attn_sinks"):
            return (rows,)
        return (columns,) if "norm" in name else (rows, columns)


_NORMS = ("attn_norm.weight", "ffn_norm.weight")
_QKV = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
_OUT = ("attn_output.weight",)
_MLP = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
_LLAMA = (*_NORMS, *_QKV, *_OUT, *_MLP)
_QKV_BIAS = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
_BIASES = (*_QKV_BIAS, "attn_output.bias")
_MLP_BIASES = ("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")
_HEAD_NORMS = ("attn_q_norm.weight", "attn_k_norm.weight")
_POSTS = ("post_attention_norm.weight", "post_ffw_norm.weight")
_LAYER_NORM_BIASES = ("attn_norm.bias", "ffn_norm.bias")
_PLAIN_MLP = ("ffn_up.weight", "ffn_down.weight", "ffn_up.bias", "ffn_down.bias")
_LAYER_NORM_TOP = ("token_embd.weight", "output_norm.weight", "output_norm.bias")
_LAYER_NORM = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5}
_LONG_ROPE = {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.19}
_YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
}  # fmt: skip
_LATENT = (
    "attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight", "attn_kv_a_mqa.weight", "attn_kv_a_norm.weight",
    "attn_kv_b.weight",
)  # fmt: skip
_ATTENTION = (*_NORMS, *_QKV, *_OUT)
_EXPERTS = ("ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight")
_SHARED = ("ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight")
_TOP_2 = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 128}
_MLA = (
    "attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight", "attn_kv_a_mqa.weight", "attn_kv_a_norm.weight",
    "attn_k_b.weight", "attn_v_b.weight",
)  # fmt: skip
_MLA_SHAPES = {
    "attn_kv_a_mqa.weight": (160, 256),
    "attn_kv_a_norm.weight": (128,),
    "attn_k_b.weight": (4, 128, 64),
    "attn_v_b.weight": (4, 64, 128),
    "attn_output.weight": (256, 256),
}
_GEMMA4 = (
    *_NORMS, "attn_q.weight", "attn_q_norm.weight", *_OUT, *_MLP, *_POSTS, "inp_gate.weight", "proj.weight",
    "post_norm.weight", "layer_output_scale.weight",
)  # fmt: skip
_GEMMA4_OWN = (*_GEMMA4, "attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
_PER_LAYER = ("per_layer_token_embd.weight", "per_layer_model_proj.weight", "per_layer_proj_norm.weight")

_DELTA_SHAPES = {
    "attn_q.weight": (512, 256), "attn_qkv.weight": (512, 256), "attn_gate.weight": (256, 256),
    "ssm_conv1d.weight": (512, 4), "ssm_dt.bias": (4,), "ssm_a": (4,), "ssm_beta.weight": (4, 256),
    "ssm_alpha.weight": (4, 256), "ssm_ba.weight": (8, 256), "ssm_in.weight": (768, 256), "ssm_norm.weight": (64,),
    "ssm_out.weight": (256, 256), "ffn_gate_inp_shexp.weight": (256,),
}  # fmt: skip
_DELTA = {
    "ssm.conv_kernel": 4, "ssm.inner_size": 256, "ssm.state_size": 64, "ssm.time_step_rank": 4, "ssm.group_count": 2,
    "full_attention_interval": 2, "rope.dimension_sections": [6, 5, 5, 0],
}  # fmt: skip
_DELTA_NORMS = ("attn_norm.weight", "post_attention_norm.weight")
_DELTA_CORE = ("ssm_conv1d.weight", "ssm_dt.bias", "ssm_a", "ssm_norm.weight", "ssm_out.weight")
_DELTA_NET = (*_DELTA_CORE, "attn_qkv.weight", "attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight")
_GATED_ATTENTION = (*_DELTA_NORMS, *_QKV, *_OUT, *_HEAD_NORMS)
_SHARED_TOP_2 = {**_TOP_2, "expert_shared_feed_forward_length": 256}
_GATED_SHARED = (*_EXPERTS, *_SHARED, "ffn_gate_inp_shexp.weight")
_CONV = ("shortconv.conv.weight", "shortconv.in_proj.weight", "shortconv.out_proj.weight")
_CONV_SHAPES = {"shortconv.conv.weight": (256, 3), "shortconv.in_proj.weight": (768, 256)}
_CONV_TOP = ("token_embd.weight", "token_embd_norm.weight")
_SCAN = (
    "ssm_in.weight", "ssm_conv1d.weight", "ssm_conv1d.bias", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_norm.weight",
    "ssm_out.weight",
)  # fmt: skip


def _scan_shapes(n_groups: int) -> dict[str, tuple[int, ...]]:
    """Of 512 values in 8 heads, and states of 64."""
    mixed = 512 + 2 * n_groups * 64
    return {
        "ssm_in.weight": (512 + mixed + 8, 256), "ssm_conv1d.weight": (mixed, 4), "ssm_conv1d.bias": (mixed,),
        "ssm_dt.bias": (8,), "ssm_a": (8, 1), "ssm_d": (8, 1), "ssm_norm.weight": (n_groups, 512 // n_groups),
        "ssm_out.weight": (256, 512),
    }  # fmt: skip


_SCAN_KEYS = {
    "ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 64, "ssm.time_step_rank": 8, "ssm.group_count": 1,
}  # fmt: skip
_KDA = (
    "attn_norm.weight", "ffn_norm.weight", *_QKV, *_OUT, "ssm_conv1d_q.weight", "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight",
    "ssm_a", "ssm_dt.bias", "ssm_norm.weight",
)  # fmt: skip
_KDA_EXPERTS = (*_EXPERTS, *_SHARED, "exp_probs_b.bias")
_KDA_SHAPES = {
    **{f"blk.{i}.attn_{part}.weight": (256, 256) for i in (0, 2) for part in "qkv"},
    **{f"ssm_conv1d_{part}.weight": (256, 1, 4) for part in "qkv"},
    "ssm_f_a.weight": (64, 256), "ssm_f_b.weight": (256, 64), "ssm_g_a.weight": (64, 256),
    "ssm_g_b.weight": (256, 64), "ssm_beta.weight": (4, 256), "ssm_a": (4, 1), "ssm_dt.bias": (256,),
    "ssm_norm.weight": (64,), "attn_q.weight": (4 * 96, 256),
}  # fmt: skip
_KDA_KEYS = {
    "attention.head_count_kv": [0, 1, 0, 1], "attention.kv_lora_rank": 128, "kda.head_dim": 64, "ssm.conv_kernel": 4,
    "attention.key_length_mla": 96, "attention.value_length_mla": 64, "expert_count": 8, "expert_used_count": 2,
    "expert_feed_forward_length": 128, "expert_shared_count": 1, "leading_dense_block_count": 1,
    "expert_weights_scale": 2.4, "expert_gating_func": 2,
}  # fmt: skip
_GRANITE_SCALES = {"embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 4.0, "attention.scale": 0.2}


def _by_turns(first: tuple[str, ...], second: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    return {0: first, 1: second, 2: first, 3: second}


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("ernie4_5", "ernie4_5", (*_LLAMA, *_QKV_BIAS)),
        Family("exaone4", "exaone4", (*_QKV, *_OUT, *_MLP, *_HEAD_NORMS, *_POSTS)),
        Family("gemma", "gemma", _LLAMA, n_kv_heads=1),
        Family(
            "gemma2", "gemma2", (*_LLAMA, *_POSTS), n_layers=4,
            keys={
                "attention.sliding_window": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0,
            },
        ),
        Family(
            "glm4", "glm4", (*_NORMS, *_QKV, *_QKV_BIAS, *_OUT, "ffn_up.weight", "ffn_down.weight", *_POSTS), n_rot=32,
            has_output=True, shapes={"ffn_up.weight": (1024, 256)},
        ),
        Family(
            "gpt2", "gpt2",
            (*_NORMS, *_LAYER_NORM_BIASES, "attn_qkv.weight", "attn_qkv.bias", *_OUT, "attn_output.bias", *_PLAIN_MLP),
            n_kv_heads=4, top=(*_LAYER_NORM_TOP, "position_embd.weight"), keys=_LAYER_NORM,
        ),
        Family(
            "granite", "granite", (*_LLAMA, "attn_output.bias", *_MLP_BIASES),
            keys={
                "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 4.0, "attention.scale": 0.2,
            },
        ),
        Family(
            "minicpm", "minicpm", _LLAMA, n_embd=512, has_output=True,
            keys={"embedding_scale": 2.0, "residual_scale": 0.7, "logit_scale": 2.0},
        ),
        Family("minicpm-old", "minicpm", _LLAMA, n_embd=512),
        Family(
            "minicpm3", "minicpm3", (*_NORMS, *_LATENT, *_OUT, *_MLP), n_embd=512, n_kv_heads=4, k_dim=96, n_rot=32,
            keys={"attention.q_lora_rank": 128, "attention.kv_lora_rank": 64},
            shapes={
                "attn_q_a.weight": (128, 512), "attn_q_a_norm.weight": (128,), "attn_q_b.weight": (384, 128),
                "attn_kv_a_mqa.weight": (96, 512), "attn_kv_a_norm.weight": (64,), "attn_kv_b.weight": (512, 64),
            },
        ),
        Family(
            "mistral3", "mistral3", _LLAMA,
            keys={**_YARN, "attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 1.0},
        ),
        Family("olmo2", "olmo2", (*_QKV, *_OUT, *_MLP, *_HEAD_NORMS, *_POSTS), has_output=True,
               shapes={"attn_q_norm.weight": (256,), "attn_k_norm.weight": (128,)}),
        Family(
            "olmo3", "olmo2", (*_QKV, *_OUT, *_MLP, *_HEAD_NORMS, *_POSTS), n_layers=5, has_output=True,
            keys={**_YARN, "attention.sliding_window": 24},
            shapes={"attn_q_norm.weight": (256,), "attn_k_norm.weight": (128,)},
        ),
        Family(
            "phi3", "phi3", (*_NORMS, "attn_qkv.weight", *_OUT, "ffn_up.weight", "ffn_down.weight"), n_kv_heads=4,
            has_output=True, top=("token_embd.weight", "output_norm.weight", "rope_factors_long.weight",
                                  "rope_factors_short.weight"),
            keys=_LONG_ROPE, shapes={"ffn_up.weight": (1024, 256)},
        ),
        Family("qwen3", "qwen3", (*_LLAMA, *_HEAD_NORMS), n_heads=8),
        Family("hunyuan-dense", "hunyuan-dense", (*_LLAMA, *_HEAD_NORMS)),
        Family("mixtral", "llama", (*_ATTENTION, *_EXPERTS), n_experts=8, n_ff=128, keys=_TOP_2),
        Family("qwen2moe", "qwen2moe", (*_ATTENTION, *_QKV_BIAS, *_EXPERTS, *_SHARED, "ffn_gate_inp_shexp.weight"),
               n_experts=8, has_output=True, keys={**_TOP_2, "expert_shared_feed_forward_length": 256},
               shapes={"ffn_gate_inp_shexp.weight": (256,)}),
        Family("qwen3moe", "qwen3moe", (*_ATTENTION, *_HEAD_NORMS, *_EXPERTS), n_experts=24, has_output=True,
               keys={"expert_count": 24, "expert_used_count": 5, "expert_feed_forward_length": 128}),
        Family("olmoe", "olmoe", (*_ATTENTION, *_HEAD_NORMS, *_EXPERTS), n_experts=8, n_ff=128, has_output=True,
               n_kv_heads=4, keys=_TOP_2, shapes={"attn_q_norm.weight": (256,), "attn_k_norm.weight": (256,)}),
        Family("granitemoe", "granitemoe", (*_ATTENTION, *_EXPERTS, *_SHARED), n_experts=8, n_ff=128,
               keys={**_TOP_2, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 4.0,
                     "attention.scale": 0.2, "expert_shared_feed_forward_length": 256}),
        Family(
            "glm4moe", "glm4moe",
            ("attn_norm.weight", "post_attention_norm.weight", *_QKV, *_QKV_BIAS, *_OUT, *_HEAD_NORMS, *_EXPERTS,
             *_SHARED, "exp_probs_b.bias"),
            n_layers=3, n_rot=32, n_experts=8, n_ff_shared=128, has_output=True,
            blocks={0: ("attn_norm.weight", "post_attention_norm.weight", *_QKV, *_QKV_BIAS, *_OUT, *_HEAD_NORMS,
                        *_MLP)},
            keys={**_TOP_2, "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_weights_scale": 1.7,
                  "expert_weights_norm": True, "expert_gating_func": 2},
        ),
        Family(
            "gpt-oss", "gpt-oss",
            ("attn_norm.weight", "post_attention_norm.weight", *_QKV, *_BIASES, *_OUT, "attn_sinks.weight", *_EXPERTS,
             *(name.replace("weight", "bias") for name in _EXPERTS)),
            n_experts=8, has_output=True,
            keys={**_YARN, **_TOP_2, "attention.sliding_window": 24},
            mixed=(GGMLType.Q8_0, GGMLType.MXFP4, GGMLType.IQ4_NL),
        ),
        Family(
            "deepseek2", "deepseek2", (*_NORMS, *_MLA, *_OUT, *_EXPERTS, *_SHARED, "exp_probs_b.bias"), n_layers=3,
            n_kv_heads=1, k_dim=160, v_dim=128, n_rot=32, n_experts=16, n_ff_shared=128, has_output=True,
            blocks={0: (*_NORMS, *_MLA, *_OUT, *_MLP)},
            keys={
                **_YARN, "rope.scaling.yarn_log_multiplier": 0.1, "attention.q_lora_rank": 128,
                "attention.kv_lora_rank": 128, "attention.key_length_mla": 96, "attention.value_length_mla": 64,
                "expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 128, "expert_group_count": 4,
                "expert_group_used_count": 2, "expert_shared_count": 1, "leading_dense_block_count": 1,
                "expert_weights_scale": 1.7, "expert_weights_norm": True, "expert_gating_func": 2,
            },
            shapes={**_MLA_SHAPES, "attn_q_a.weight": (128, 256), "attn_q_a_norm.weight": (128,),
                    "attn_q_b.weight": (384, 128)},
        ),
        Family(
            "deepseek2-old", "deepseek2", (*_NORMS, *_LATENT, *_OUT, *_EXPERTS, *_SHARED), n_kv_heads=4, k_dim=96,
            n_rot=32, n_experts=8, has_output=True, blocks={0: (*_NORMS, *_LATENT, *_OUT, *_MLP)},
            keys={**_TOP_2, "attention.q_lora_rank": 128, "attention.kv_lora_rank": 128, "expert_shared_count": 2,
                  "leading_dense_block_count": 1},
            shapes={**_MLA_SHAPES, "attn_q_a.weight": (128, 256), "attn_q_a_norm.weight": (128,),
                    "attn_q_b.weight": (384, 128), "attn_kv_b.weight": (512, 128)},
        ),
        Family(
            "gemma4", "gemma4", _GEMMA4, n_layers=7, n_kv_heads=2, k_dim=128, v_dim=128, n_rot=128,
            top=("token_embd.weight", "output_norm.weight", "rope_freqs.weight", *_PER_LAYER),
            blocks={0: _GEMMA4_OWN, 1: _GEMMA4_OWN, 2: tuple(n for n in _GEMMA4_OWN if "attn_v" not in n)},
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
        Family(
            "qwen35", "qwen35", (), n_layers=4, n_rot=32, has_output=True,
            blocks=_by_turns((*_DELTA_NORMS, *_DELTA_NET, *_MLP), (*_GATED_ATTENTION, *_MLP)),
            keys=_DELTA, shapes=_DELTA_SHAPES,
        ),
        Family(
            "qwen35moe", "qwen35moe", (), n_layers=4, n_rot=32, n_experts=8,
            blocks=_by_turns((*_DELTA_NORMS, *_DELTA_NET, *_GATED_SHARED), (*_GATED_ATTENTION, *_GATED_SHARED)),
            keys={**_DELTA, **_SHARED_TOP_2}, shapes=_DELTA_SHAPES,
        ),
        Family(
            "qwen3next", "qwen3next", (), n_layers=4, n_rot=32, n_experts=8, has_output=True,
            blocks=_by_turns(
                (*_DELTA_NORMS, *_DELTA_CORE, "attn_qkv.weight", "attn_gate.weight", "ssm_ba.weight", *_GATED_SHARED),
                (*_GATED_ATTENTION, *_GATED_SHARED),
            ),
            keys={**_DELTA, **_SHARED_TOP_2}, shapes=_DELTA_SHAPES,
        ),
        Family(
            "qwen3next-fused", "qwen3next", (), n_layers=4, n_rot=32, n_experts=8, has_output=True,
            blocks=_by_turns(
                (*_DELTA_NORMS, *_DELTA_CORE, "ssm_in.weight", "ssm_ba.weight", *_GATED_SHARED),
                (*_GATED_ATTENTION, *_GATED_SHARED),
            ),
            keys={**_DELTA, **_SHARED_TOP_2}, shapes=_DELTA_SHAPES,
        ),
        Family(
            "kimi-linear", "kimi-linear", (), n_layers=4, n_kv_heads=1, k_dim=160, v_dim=128, n_rot=32, n_experts=8,
            n_ff_shared=128, has_output=True, keys=_KDA_KEYS, shapes={**_MLA_SHAPES, **_KDA_SHAPES},
            blocks={
                0: (*_KDA, *_MLP), 1: (*_NORMS, "attn_q.weight", *_MLA[3:], *_OUT, *_KDA_EXPERTS),
                2: (*_KDA, *_KDA_EXPERTS), 3: (*_NORMS, "attn_q.weight", *_MLA[3:], *_OUT, *_KDA_EXPERTS),
            },
        ),
        Family(
            "lfm2", "lfm2", (), n_layers=4, top=_CONV_TOP, shapes=_CONV_SHAPES,
            blocks=_by_turns((*_NORMS, *_CONV, *_MLP), (*_LLAMA, *_HEAD_NORMS)),
            keys={"attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 3},
        ),
        Family(
            "lfm2moe", "lfm2moe", (), n_layers=4, n_experts=8, top=_CONV_TOP, shapes=_CONV_SHAPES,
            blocks={
                0: (*_NORMS, *_CONV, *_MLP), 1: (*_ATTENTION, *_HEAD_NORMS, *_EXPERTS, "exp_probs_b.bias"),
                2: (*_NORMS, *_CONV, *_EXPERTS, "exp_probs_b.bias"),
                3: (*_ATTENTION, *_HEAD_NORMS, *_EXPERTS, "exp_probs_b.bias"),
            },
            keys={**_TOP_2, "attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 3, "expert_gating_func": 2,
                  "leading_dense_block_count": 1},
        ),
        Family(
            "granitehybrid", "granitehybrid", (), n_layers=4, n_experts=8, n_ff=128, shapes=_scan_shapes(1),
            blocks=_by_turns((*_NORMS, *_SCAN, *_EXPERTS, *_SHARED), (*_ATTENTION, *_EXPERTS, *_SHARED)),
            keys={**_SHARED_TOP_2, **_SCAN_KEYS, **_GRANITE_SCALES, "attention.head_count_kv": [0, 2, 0, 2],
                  "rope.scaling.finetuned": False},
        ),
        Family(
            "granitehybrid-dense", "granitehybrid", (), n_layers=4, shapes=_scan_shapes(2), has_output=True,
            blocks=_by_turns((*_NORMS, *_SCAN, *_MLP), _LLAMA),
            keys={**_SCAN_KEYS, **_GRANITE_SCALES, "ssm.group_count": 2, "attention.head_count_kv": [0, 2, 0, 2]},
        ),
        Family(
            "mamba2", "mamba2", ("attn_norm.weight", *_SCAN), n_layers=3, n_ff=0, shapes=_scan_shapes(2),
            keys={**_SCAN_KEYS, "ssm.group_count": 2, "attention.head_count": 0, "attention.head_count_kv": None,
                  "attention.key_length": None, "attention.value_length": None, "rope.dimension_count": None},
        ),
        Family("seed_oss", "seed_oss", (
            "attn_norm.weight", "post_attention_norm.weight", *_QKV, *_QKV_BIAS, *_OUT, *_MLP,
        )),
        Family("smollm3", "smollm3", _LLAMA, n_layers=5),
        Family(
            "stablelm", "stablelm", (*_LLAMA, *_LAYER_NORM_BIASES, *_QKV_BIAS), n_rot=16, n_kv_heads=4, has_output=True,
            top=_LAYER_NORM_TOP, keys=_LAYER_NORM,
        ),
        Family(
            "stablelm-parallel", "stablelm", ("attn_norm.weight", "attn_norm.bias", *_QKV, *_OUT, *_MLP), n_rot=16,
            n_kv_heads=4, has_output=True, top=_LAYER_NORM_TOP, keys=_LAYER_NORM,
        ),
        Family(
            "starcoder2", "starcoder2", (*_NORMS, *_LAYER_NORM_BIASES, *_QKV, *_BIASES[:3], *_OUT, *_BIASES[3:],
                                         *_PLAIN_MLP),
            top=_LAYER_NORM_TOP, keys=_LAYER_NORM,
        ),
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
    return values.astype(np.float32)


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
