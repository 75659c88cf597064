"""The kernels that read a row of logits, against a twin that sorts everything."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from naive_sampling import adjust, candidates, probabilities, uniform
from phobos.kernels.sampling import Chain, RowKernels

KEY = 0x1234567890ABCDEF


def pack(allowed: set[int], n_vocab: int) -> Any:
    bits = np.zeros((n_vocab + 31) // 32 * 32, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def draw(row: Any, position: int = 0, key: int = KEY, **chain: Any) -> int | None:
    extra = {name: chain.pop(name) for name in ("mask", "seen_ids", "seen_counts") if name in chain}
    row = np.asarray(row, np.float32)
    before = row.copy()
    token = RowKernels(len(row)).draw(row, Chain(**{"temperature": 1.0, **chain}), key, position, **extra)
    np.testing.assert_array_equal(row, before)
    return token


def draw_slowly(row: Any, kept: list[int], temperature: float, point: float) -> tuple[int, float]:
    """The token at `point`, and how far the point is from the nearest edge between two tokens."""
    running, edges = 0.0, []
    chances = probabilities(row, kept, temperature)
    for chance in chances:
        running += chance
        edges.append(running)
    index = next((i for i, edge in enumerate(edges) if edge > point), len(kept) - 1)
    return kept[index], min(abs(edge - point) for edge in [*edges, 0.0]) if len(kept) > 1 else 1.0


# Logits far enough apart that float32 and float64 agree on every filter's edge; some tie on purpose.
levels = npst.arrays(np.float32, st.integers(1, 140), elements=st.integers(-40, 40).map(lambda i: np.float32(i / 4)))


@given(
    row=levels,
    top_k=st.sampled_from([0, 1, 2, 5, 40, 139, 1000]),
    typical_p=st.sampled_from([1.0, 1.0, 0.31, 0.87]),
    top_p=st.sampled_from([1.0, 0.953, 0.53, 0.07, 0.9993]),
    min_p=st.sampled_from([0.0, 0.0513, 0.71]),
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    position=st.integers(0, 100_000),
)
@settings(max_examples=200, deadline=None)
def test_the_chain_draws_what_its_twin_draws(
    row: Any, top_k: int, typical_p: float, top_p: float, min_p: float, temperature: float, position: int
) -> None:
    filters = {"top_k": top_k, "typical_p": typical_p, "top_p": top_p, "min_p": min_p}
    token = draw(row, position, temperature=temperature, **filters)
    kept = candidates(row, **filters)
    if typical_p < 1:  # distances from the entropy tie at float32's last bit: membership only
        assert token in kept or typical_p_is_close(row, top_k, typical_p, token, kept)
        return
    full = top_k in (0, *range(len(row), 2000)) and top_p == 1 and min_p == 0
    expected, margin = draw_slowly(row, sorted(kept) if full else kept, temperature, uniform(KEY, position))
    assert token == expected or margin < 1e-5


def typical_p_is_close(row: Any, top_k: int, typical_p: float, token: int | None, kept: list[int]) -> bool:
    """Whether a slightly larger or smaller share would keep the token."""
    return any(token in candidates(row, top_k=top_k, typical_p=typical_p + d) for d in (1e-4, -1e-4)) or any(
        row[token] == row[k] for k in kept
    )


@given(row=levels, data=st.data())
@settings(max_examples=80, deadline=None)
def test_adjustments_come_in_order(row: Any, data: st.DataObject) -> None:
    n = len(row)
    tokens = st.integers(0, n - 1)
    bias = data.draw(st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 2.25, 100.0]), max_size=5))
    allowed = data.draw(st.none() | st.sets(tokens, min_size=1))
    prompt, answer = data.draw(st.lists(tokens, max_size=8)), data.draw(st.lists(tokens, max_size=8))
    penalties = data.draw(
        st.fixed_dictionaries(
            {
                "repetition_penalty": st.sampled_from([1.0, 1.25, 0.5]),
                "presence_penalty": st.sampled_from([0.0, 0.625, -0.625]),
                "frequency_penalty": st.sampled_from([0.0, 0.375]),
            }
        )
    )
    seen = sorted({*prompt, *answer})
    token = draw(
        row,
        temperature=0.0,
        bias_ids=np.array(list(bias), np.int32),
        bias_values=np.array(list(bias.values()), np.float32),
        seen_ids=np.array(seen, np.int32),
        seen_counts=np.array([answer.count(t) for t in seen], np.int32),
        **({} if allowed is None else {"mask": pack(allowed, n)}),
        **penalties,
    )
    twin = adjust(row, bias=bias, allowed=allowed, prompt=prompt, answer=answer, **penalties)
    assert token is not None
    assert token in (allowed if allowed is not None else range(n))
    best = max(twin)
    assert twin[token] == pytest.approx(best, abs=1e-4)
    if sum(value > best - 1e-4 for value in twin) > 1 and not (bias or seen):
        assert token == twin.index(best)


def test_the_greatest_wins_at_temperature_zero_and_the_lowest_id_on_ties() -> None:
    row = np.zeros(500, np.float32)
    row[[130, 131, 400]] = 2
    assert draw(row, temperature=0.0) == 130
    assert draw(row, temperature=-1.0) == 130
    assert draw([-0.0, 0.0, -1.0], temperature=0.0) == 0
    assert draw([-5.0, -0.0, 0.0], temperature=0.0) == 1


@pytest.mark.parametrize("temperature", [1e-9, 1e-45, 1e-3])
def test_a_tiny_temperature_takes_the_greatest(temperature: float) -> None:
    row = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    assert draw(row, temperature=temperature) == int(row.argmax())
    assert draw(row, temperature=temperature, top_k=40, top_p=0.95) == int(row.argmax())


@pytest.mark.parametrize("bad", [-math.inf, math.nan, -math.nan])
def test_tokens_without_a_number_are_never_drawn(bad: float) -> None:
    row = np.full(200, bad, np.float32)
    row[[3, 150]] = [1.0, 0.5]
    for chain in ({}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.01}, {"typical_p": 0.9}, {"temperature": 0.0}):
        drawn = {draw(row, position, **chain) for position in range(30)}
        assert drawn <= {3, 150} and drawn


@pytest.mark.parametrize("chain", [{}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.5}])
def test_no_token_where_none_can_follow(chain: dict[str, Any]) -> None:
    assert draw(np.full(70, -np.inf, np.float32), **chain) is None
    assert draw(np.full(70, np.nan, np.float32), **chain) is None
    assert draw(np.zeros(70, np.float32), mask=pack(set(), 70), **chain) is None


def test_draws_follow_the_probabilities() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    kernels, chain, n = RowKernels(4), Chain(temperature=1.0), 20_000
    counts = np.bincount([kernels.draw(row, chain, 99, i) for i in range(n)], minlength=4) / n
    np.testing.assert_allclose(counts, [0.5, 0.25, 0.125, 0.125], atol=0.015)


def test_the_whole_vocabulary_is_drawn_from_when_no_filter_is_on() -> None:
    row = np.zeros(130, np.float32)
    assert {draw(row, position) for position in range(3000)} == set(range(130))


@given(row=levels, n_top=st.sampled_from([0, 1, 5, 20, 32]), token=st.integers(0, 139))
@settings(max_examples=80, deadline=None)
def test_log_probabilities(row: Any, n_top: int, token: int) -> None:
    token %= len(row)
    logprob, ids, values = RowKernels(len(row)).log_probabilities(row, token, n_top)
    exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    assert logprob == pytest.approx(exact[token], abs=1e-5)
    best = sorted(range(len(row)), key=lambda t: (-row[t], t))[:n_top]
    assert ids.tolist() == best
    np.testing.assert_allclose(values, exact[best], atol=1e-5)


def test_log_probabilities_of_rows_with_infinities() -> None:
    row = np.array([1.0, -np.inf, 0.0, np.nan], np.float32)
    logprob, ids, values = RowKernels(4).log_probabilities(row, 1, 4)
    assert logprob == -math.inf
    assert ids.tolist() == [0, 2]
    assert np.exp(values).sum() == pytest.approx(1)
    logprob, ids, _ = RowKernels(4).log_probabilities(np.full(4, -np.inf, np.float32), 0, 4)
    assert math.isnan(logprob) and not len(ids)


@pytest.mark.parametrize("n_vocab", [1, 63, 64, 65, 4096, 151_936])
@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_large_flat_and_odd_vocabularies(n_vocab: int, spread: float) -> None:
    row = (np.random.default_rng(n_vocab).standard_normal(n_vocab) * spread).astype(np.float32)
    by_size = np.lexsort((np.arange(n_vocab), -row))
    chances = np.exp(row[by_size].astype(np.float64) - row.max())
    chances /= chances.sum()
    nucleus = set(by_size[: int(np.searchsorted(np.cumsum(chances), 0.9)) + 1].tolist())
    slack = set(by_size[: int(np.searchsorted(np.cumsum(chances), 0.90001)) + 2].tolist())
    kernels = RowKernels(n_vocab)
    for position in range(40):
        assert kernels.draw(row, Chain(temperature=1.0, top_p=0.9), KEY, position) in nucleus | slack
        assert kernels.draw(row, Chain(temperature=1.0, top_k=40), KEY, position) in by_size[:40]
        assert kernels.draw(row, Chain(temperature=1.0, top_k=5000), KEY, position) in by_size[:5000]
    assert kernels.draw(row, Chain(temperature=0.0), KEY, 0) == by_size[0]


@pytest.mark.parametrize("chain", [Chain(0.8, 40, 1.0, 0.95, 0.05), Chain(0.0)], ids=["default chain", "greedy"])
def test_a_token_of_a_large_vocabulary_costs_under_half_a_millisecond(chain: Chain) -> None:
    n_vocab = 151_936
    row = (np.random.default_rng(5).standard_normal(n_vocab) * 3).astype(np.float32)
    kernels = RowKernels(n_vocab)
    kernels.draw(row, chain, KEY, 0)
    best = math.inf
    for position in range(100):
        started = time.perf_counter()
        kernels.draw(row, chain, KEY, position)
        best = min(best, time.perf_counter() - started)
    assert best < 0.5e-3
