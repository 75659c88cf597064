"""Recipes of the families whose blocks are of several kinds: recurrent ones between attention, windows between full."""

from __future__ import annotations

from models.family_recipe import (
    ATTENTION,
    EXPERTS,
    GEMMA4_OWN,
    HEAD_NORMS,
    LLAMA,
    MLA,
    MLA_SHAPES,
    MLP,
    NORMS,
    OUT,
    PER_LAYER,
    POSTS,
    QKV,
    SHARED,
    TOP_2,
    Family,
)
from models.tiny_models import N_VOCAB
from phobos.gguf.quants import GGMLType

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
_GATED_ATTENTION = (*_DELTA_NORMS, *QKV, *OUT, *HEAD_NORMS)
_SHARED_TOP_2 = {**TOP_2, "expert_shared_feed_forward_length": 256}
_GATED_SHARED = (*EXPERTS, *SHARED, "ffn_gate_inp_shexp.weight")
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
    "attn_norm.weight", "ffn_norm.weight", *QKV, *OUT, "ssm_conv1d_q.weight", "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight",
    "ssm_a", "ssm_dt.bias", "ssm_norm.weight",
)  # fmt: skip
_KDA_EXPERTS = (*EXPERTS, *SHARED, "exp_probs_b.bias")
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


_GEMMA4_MIXED = (
    *GEMMA4_OWN[:2], *(name for name in GEMMA4_OWN[2:] if not name.startswith(("inp_gate", "proj", "post_norm"))),
    "ffn_gate_inp.weight", "ffn_gate_inp.scale", "pre_ffw_norm_2.weight", "post_ffw_norm_1.weight",
    "post_ffw_norm_2.weight", "ffn_gate_up_exps.weight", "ffn_down_exps.weight", "ffn_down_exps.scale",
)  # fmt: skip

_GEMMA3N = (
    *NORMS, *QKV, *OUT, *MLP, *HEAD_NORMS, *POSTS, "inp_gate.weight", "proj.weight", "post_norm.weight",
    "altup_correct_coef.weight", "altup_correct_scale.weight", "altup_predict_coef.weight", "altup_router.weight",
    "altup_router_norm.weight", "laurel_l.weight", "laurel_r.weight", "laurel_post_norm.weight",
)  # fmt: skip

HYBRIDS: tuple[Family, ...] = (
    Family(  # the referee knows but one number of blocks with own caches, and of values for each layer
        "gemma3n", "gemma3n", _GEMMA3N, n_layers=25, n_embd=128, n_ff=128, n_heads=2, n_kv_heads=1,
        top=("token_embd.weight", "output_norm.weight", "altup_proj.weight", "altup_unembd_proj.weight", *PER_LAYER),
        keys={
            "attention.sliding_window": 24, "attention.shared_kv_layers": 5, "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            "embedding_length_per_layer_input": 256, "final_logit_softcapping": 30.0,
        },
        shapes={
            "altup_proj.weight": (3, 128, 128), "altup_unembd_proj.weight": (3, 128, 128),
            "per_layer_token_embd.weight": (N_VOCAB, 6400), "per_layer_model_proj.weight": (6400, 128),
            "per_layer_proj_norm.weight": (256,), "inp_gate.weight": (256, 128), "proj.weight": (128, 256),
            "altup_correct_coef.weight": (4, 4), "altup_correct_scale.weight": (128,),
            "altup_predict_coef.weight": (16, 4), "altup_router.weight": (4, 128), "laurel_l.weight": (64, 128),
            "laurel_r.weight": (128, 64),
        },
        mixed=(GGMLType.Q8_0, GGMLType.Q5_1, GGMLType.Q4_0, GGMLType.F16),
        gains={"attn_q_norm.weight": 0.1, "post_ffw_norm.weight": 0.4, "post_norm.weight": 0.4},
        unread=tuple(f"blk.{i}.attn_{part}.weight" for i in range(20, 25) for part in ("k", "v", "k_norm")),
    ),
    Family(
        "gemma4-moe", "gemma4", _GEMMA4_MIXED, n_layers=4, k_dim=128, v_dim=128, n_rot=128, n_experts=8,
        top=("token_embd.weight", "output_norm.weight", "rope_freqs.weight"),
        keys={
            **TOP_2, "attention.sliding_window": 24, "attention.sliding_window_pattern": [True, False, True, False],
            "attention.key_length_swa": 64, "attention.value_length_swa": 64, "rope.dimension_count_swa": 64,
            "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0, "final_logit_softcapping": 30.0,
        },
        shapes={
            **{f"blk.{i}.attn_{p}.weight": (n * 64, 256) for i in (0, 2) for p, n in (("q", 4), ("k", 2), ("v", 2))},
            **{f"blk.{i}.attn_output.weight": (256, 4 * 64) for i in (0, 2)},
            **{f"blk.{i}.attn_{p}_norm.weight": (64,) for i in (0, 2) for p in "qk"},
            "ffn_gate_inp.scale": (256,), "ffn_gate_up_exps.weight": (8, 256, 256), "ffn_down_exps.scale": (8,),
            "layer_output_scale.weight": (1,),
        },
    ),
    Family(
        "mimo2", "mimo2", (*ATTENTION, "attn_sinks.weight", *EXPERTS, "exp_probs_b.bias"), n_layers=4,
        n_kv_heads=2, k_dim=96, v_dim=64, n_rot=32, n_experts=8, has_output=True,
        blocks={0: (*NORMS, "attn_qkv.weight", *OUT, *MLP), 3: (*ATTENTION, *EXPERTS, "exp_probs_b.bias")},
        keys={**TOP_2, "attention.sliding_window": 24,
              "attention.sliding_window_pattern": [x in (1, 2) for x in range(4)],
              "attention.head_count_kv": [1, 2, 2, 1], "attention.value_scale": 0.6, "rope.freq_base": 1e6,
              "rope.freq_base_swa": 1e4, "expert_gating_func": 2},
        shapes={"attn_qkv.weight": (4 * 96 + 96 + 64, 256), "blk.3.attn_k.weight": (96, 256),
                "blk.3.attn_v.weight": (64, 256)},
    ),
    Family(
        "qwen35", "qwen35", (), n_layers=4, n_rot=32, has_output=True,
        blocks=_by_turns((*_DELTA_NORMS, *_DELTA_NET, *MLP), (*_GATED_ATTENTION, *MLP)),
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
        n_ff_shared=128, has_output=True, keys=_KDA_KEYS, shapes={**MLA_SHAPES, **_KDA_SHAPES},
        blocks={
            0: (*_KDA, *MLP), 1: (*NORMS, "attn_q.weight", *MLA[3:], *OUT, *_KDA_EXPERTS),
            2: (*_KDA, *_KDA_EXPERTS), 3: (*NORMS, "attn_q.weight", *MLA[3:], *OUT, *_KDA_EXPERTS),
        },
    ),
    Family(
        "lfm2", "lfm2", (), n_layers=4, top=_CONV_TOP, shapes=_CONV_SHAPES,
        blocks=_by_turns((*NORMS, *_CONV, *MLP), (*LLAMA, *HEAD_NORMS)),
        keys={"attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 3},
    ),
    Family(
        "lfm2moe", "lfm2moe", (), n_layers=4, n_experts=8, top=_CONV_TOP, shapes=_CONV_SHAPES,
        blocks={
            0: (*NORMS, *_CONV, *MLP), 1: (*ATTENTION, *HEAD_NORMS, *EXPERTS, "exp_probs_b.bias"),
            2: (*NORMS, *_CONV, *EXPERTS, "exp_probs_b.bias"),
            3: (*ATTENTION, *HEAD_NORMS, *EXPERTS, "exp_probs_b.bias"),
        },
        keys={**TOP_2, "attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 3, "expert_gating_func": 2,
              "leading_dense_block_count": 1},
    ),
    Family(
        "granitehybrid", "granitehybrid", (), n_layers=4, n_experts=8, n_ff=128, shapes=_scan_shapes(1),
        blocks=_by_turns((*NORMS, *_SCAN, *EXPERTS, *SHARED), (*ATTENTION, *EXPERTS, *SHARED)),
        keys={**_SHARED_TOP_2, **_SCAN_KEYS, **_GRANITE_SCALES, "attention.head_count_kv": [0, 2, 0, 2],
              "rope.scaling.finetuned": False},
    ),
    Family(
        "granitehybrid-dense", "granitehybrid", (), n_layers=4, shapes=_scan_shapes(2), has_output=True,
        blocks=_by_turns((*NORMS, *_SCAN, *MLP), LLAMA),
        keys={**_SCAN_KEYS, **_GRANITE_SCALES, "ssm.group_count": 2, "attention.head_count_kv": [0, 2, 0, 2]},
    ),
    Family(
        "mamba2", "mamba2", ("attn_norm.weight", *_SCAN), n_layers=3, n_ff=0, shapes=_scan_shapes(2),
        keys={**_SCAN_KEYS, "ssm.group_count": 2, "attention.head_count": 0, "attention.head_count_kv": None,
              "attention.key_length": None, "attention.value_length": None, "rope.dimension_count": None},
    ),
)  # fmt: skip
