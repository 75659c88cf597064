"""What recipes of tiny models are made of: the shape of a family, and lists of tensors that families share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.tiny_models import N_CTX, N_VOCAB
from phobos.gguf.quants import GGMLType

F32 = GGMLType.F32
#: Types dealt out over the matrices of a quantized twin, in turn.
MIXED = (GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.Q6_K, GGMLType.Q5_1, GGMLType.Q4_0, GGMLType.F16)


@dataclass(frozen=True)
class Family:
    """The shape of a tiny model. `keys` are further metadata under the architecture's prefix (None takes one away),
    `block` the tensors of each block, `blocks` of those that differ, `shapes` what does not follow from a name,
    `unread` the tensors no step reads, `gains` factors of draws where many blocks would let rounding decide."""

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
    unread: tuple[str, ...] = ()
    gains: Mapping[str, float] = field(default_factory=dict)

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


NORMS = ("attn_norm.weight", "ffn_norm.weight")
QKV = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
OUT = ("attn_output.weight",)
MLP = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
LLAMA = (*NORMS, *QKV, *OUT, *MLP)
QKV_BIAS = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
BIASES = (*QKV_BIAS, "attn_output.bias")
MLP_BIASES = ("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")
HEAD_NORMS = ("attn_q_norm.weight", "attn_k_norm.weight")
POSTS = ("post_attention_norm.weight", "post_ffw_norm.weight")
LAYER_NORM_BIASES = ("attn_norm.bias", "ffn_norm.bias")
PLAIN_MLP = ("ffn_up.weight", "ffn_down.weight", "ffn_up.bias", "ffn_down.bias")
LAYER_NORM_TOP = ("token_embd.weight", "output_norm.weight", "output_norm.bias")
LAYER_NORM = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5}
LONG_ROPE = {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.19}
YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
}  # fmt: skip
LATENT = (
    "attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight", "attn_kv_a_mqa.weight", "attn_kv_a_norm.weight",
    "attn_kv_b.weight",
)  # fmt: skip
ATTENTION = (*NORMS, *QKV, *OUT)
EXPERTS = ("ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight")
SHARED = ("ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight")
TOP_2 = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 128}
MLA = (
    "attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight", "attn_kv_a_mqa.weight", "attn_kv_a_norm.weight",
    "attn_k_b.weight", "attn_v_b.weight",
)  # fmt: skip
MLA_SHAPES = {
    "attn_kv_a_mqa.weight": (160, 256),
    "attn_kv_a_norm.weight": (128,),
    "attn_k_b.weight": (4, 128, 64),
    "attn_v_b.weight": (4, 64, 128),
    "attn_output.weight": (256, 256),
}
GEMMA4 = (
    *NORMS, "attn_q.weight", "attn_q_norm.weight", *OUT, *MLP, *POSTS, "inp_gate.weight", "proj.weight",
    "post_norm.weight", "layer_output_scale.weight",
)  # fmt: skip
GEMMA4_OWN = (*GEMMA4, "attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
PER_LAYER = ("per_layer_token_embd.weight", "per_layer_model_proj.weight", "per_layer_proj_norm.weight")
