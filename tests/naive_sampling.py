"""The sampling chain written the slow and obvious way, in float64 and with full sorts: the twin of the kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MASK = (1 << 64) - 1


def uniform(key: int, position: int) -> float:
    """splitmix64 entered at `position`."""
    z = (key + (position + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return ((z ^ (z >> 31)) >> 11) / 2**53


def adjust(
    logits: Any,
    *,
    bias: Mapping[int, float] | None = None,
    allowed: set[int] | None = None,
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> list[float]:
    """Bias, mask and penalties."""
    row = [-math.inf if math.isnan(x) else float(x) for x in logits]
    for token, value in (bias or {}).items():
        row[token] += value
    for token in range(len(row)):
        if allowed is not None and token not in allowed:
            row[token] = -math.inf
    for token in {*prompt, *answer}:
        row[token] = row[token] / repetition_penalty if row[token] > 0 else row[token] * repetition_penalty
        count = list(answer).count(token)
        if count:
            row[token] -= presence_penalty + frequency_penalty * count
    return row


def probabilities(row: Sequence[float], tokens: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Softmax over some tokens."""
    top = max(row[t] for t in tokens)
    weights = [math.exp(max((row[t] - top) / temperature, -700)) if row[t] > -math.inf else 0.0 for t in tokens]
    return [w / sum(weights) for w in weights]


def candidates(
    row: Sequence[float], top_k: int = 0, typical_p: float = 1.0, top_p: float = 1.0, min_p: float = 0.0
) -> list[int]:
    """What is left after the filters, most probable first."""
    tokens = sorted((t for t in range(len(row)) if row[t] > -math.inf), key=lambda t: (-row[t], t))
    if 0 < top_k < len(row):
        tokens = tokens[:top_k]
    if typical_p < 1:
        chances = dict(zip(tokens, probabilities(row, tokens), strict=True))
        entropy = -sum(p * math.log(p) for p in chances.values() if p > 0)
        distance = {t: abs(-math.log(p) - entropy) if p > 0 else math.inf for t, p in chances.items()}
        tokens = prefix(sorted(tokens, key=lambda t: (distance[t], t)), chances, typical_p)
        tokens.sort(key=lambda t: (-row[t], t))
    if top_p < 1:
        tokens = prefix(tokens, dict(zip(tokens, probabilities(row, tokens), strict=True)), top_p)
    if min_p > 0:
        best = max(row[t] for t in tokens)
        tokens = [t for t in tokens if row[t] >= best + math.log(min_p)]
    return tokens


def prefix(tokens: Sequence[int], chances: Mapping[int, float], wanted: float) -> list[int]:
    """The shortest beginning that holds `wanted` of the probability."""
    kept, held = [], 0.0
    for token in tokens:
        kept.append(token)
        held += chances[token]
        if held >= wanted:
            break
    return kept
