"""The numbers a model file may set, and the range each may lie in.

One row a key, named without the architecture's prefix. Whoever reads a number of the model goes through `GGUF.get_int`
and its kin, which look the row up here: a number outside its range is refused there, and a key without a row cannot be
read at all. The bounds are wide: several times what any published model has. Whether numbers agree with one another and
with the tensors is for `program/checks.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_LARGEST_ID = (1 << 32) - 1


@dataclass(frozen=True)
class Allowed:
    """From `low` to `high`, both included; a `low` of `_TINY` means above 0."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value lies inside; NaN lies nowhere."""
        return self.low <= value <= self.high

    def describe(self) -> str:
        """The range in words."""
        start = "above 0 and at most" if self.low == _TINY else f"from {_shown(self.low)} to"
        return f"{start} {_shown(self.high)}"


def _shown(bound: float) -> str:
    return f"{bound:.0f}" if float(bound).is_integer() and abs(bound) < 1e12 else f"{bound:g}"


_TINY = math.ulp(0.0)


def _whole(low: int, high: int) -> Allowed:
    return Allowed(low, high)


_WIDTH = _whole(1, 1 << 20)  # values of a row
_WIDTH_OR_NONE = _whole(0, 1 << 20)
_HEADS = _whole(1, 1 << 14)
_HEADS_OR_NONE = _whole(0, 1 << 14)
_DIMENSION = _whole(1, 1 << 14)  # values of a head
_EXPERTS = _whole(0, 1 << 12)
_BLOCKS = _whole(0, 1 << 12)
_LENGTH = _whole(1, 1 << 30)  # positions
_POSITIVE = Allowed(_TINY, 1e9)
_FACTOR = Allowed(0, 1e9)  # 0 where a file means "not set"
_BASE = Allowed(2, 1e18)
_STRETCH = Allowed(0.01, 1e6)  # of positions
_EPSILON = Allowed(_TINY, 1)

HYPERPARAMETERS: Mapping[str, Allowed] = {
    "activation_sparsity_scale": Allowed(-100, 100),
    "attention.head_count": _HEADS_OR_NONE,
    "attention.head_count_kv": _HEADS_OR_NONE,
    "attention.key_length": _DIMENSION,
    "attention.key_length_mla": _DIMENSION,
    "attention.key_length_swa": _DIMENSION,
    "attention.kv_lora_rank": _WIDTH,
    "attention.layer_norm_epsilon": _EPSILON,
    "attention.layer_norm_rms_epsilon": _EPSILON,
    "attention.q_lora_rank": _WIDTH_OR_NONE,
    "attention.scale": _FACTOR,
    "attention.shared_kv_layers": _BLOCKS,
    "attention.sliding_window": _whole(0, _LARGEST_ID),
    "attention.sliding_window_pattern": _whole(1, 1 << 12),
    "attention.temperature_scale": _FACTOR,
    "attention.value_length": _DIMENSION,
    "attention.value_length_mla": _DIMENSION,
    "attention.value_scale": _POSITIVE,
    "attn_logit_softcapping": _FACTOR,
    "block_count": _whole(1, 1 << 12),
    "context_length": _LENGTH,
    "embedding_length": _WIDTH,
    "embedding_length_per_layer_input": _WIDTH_OR_NONE,
    "embedding_scale": _FACTOR,
    "expert_count": _EXPERTS,
    "expert_feed_forward_length": _WIDTH_OR_NONE,
    "expert_gating_func": _whole(0, 255),
    "expert_group_count": _EXPERTS,
    "expert_group_used_count": _EXPERTS,
    "expert_shared_count": _EXPERTS,
    "expert_shared_feed_forward_length": _WIDTH_OR_NONE,
    "expert_used_count": _EXPERTS,
    "expert_weights_scale": _FACTOR,
    "feed_forward_length": _WIDTH_OR_NONE,
    "final_logit_softcapping": _FACTOR,
    "kda.head_dim": _DIMENSION,
    "leading_dense_block_count": _BLOCKS,
    "logit_scale": _FACTOR,
    "nextn_predict_layers": _BLOCKS,
    "pooling_type": _whole(0, _LARGEST_ID),
    "residual_scale": _FACTOR,
    "rope.dimension_count": _whole(2, 1 << 14),
    "rope.dimension_count_swa": _whole(2, 1 << 14),
    "rope.freq_base": _BASE,
    "rope.freq_base_swa": _BASE,
    "rope.scale_linear": _FACTOR,
    "rope.scaling.attn_factor": _POSITIVE,
    "rope.scaling.factor": _STRETCH,
    "rope.scaling.original_context_length": _whole(2, 1 << 30),
    "rope.scaling.yarn_beta_fast": _STRETCH,
    "rope.scaling.yarn_beta_slow": _STRETCH,
    "rope.scaling.yarn_log_multiplier": Allowed(0, 2),
    "shortconv.l_cache": _whole(2, 64),
    "ssm.conv_kernel": _whole(1, 64),
    "ssm.group_count": _HEADS,
    "ssm.inner_size": _WIDTH,
    "ssm.state_size": _DIMENSION,
    "ssm.time_step_rank": _HEADS,
}


def allowed(key: str, architecture: str) -> Allowed:
    """The range of `key`, written with the architecture's prefix. `LookupError` for a key without a row."""
    name = key.removeprefix(f"{architecture}.")
    found = HYPERPARAMETERS.get(name) if name != key else None
    if found is None:
        raise LookupError(f"{key} is read without a range: give it a row in gguf/hyperparameters.py")
    return found
