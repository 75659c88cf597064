"""Settings, seeds and counts above the kernels."""

from __future__ import annotations

import numpy as np
import pytest

from phobos.chat.messages import SamplingParams
from phobos.engine.model import read_sampling
from phobos.engine.sampler import Sampler, TokenCounts, derive_key, read_logprobs, resolve_sampling
from phobos.kernels.sampling import RowKernels
from phobos.settings import SamplingDefaults


def test_a_field_falls_back_to_the_flag_then_the_file_then_phobos() -> None:
    flags = SamplingDefaults(top_k=7, temperature=0.0)
    file = SamplingDefaults(top_k=9, top_p=0.5, repetition_penalty=1.1)
    chain = resolve_sampling(SamplingParams(temperature=1.5), flags, file).chain
    assert (chain.temperature, chain.top_k, chain.top_p, chain.min_p) == (1.5, 7, 0.5, 0.05)
    assert (chain.repetition_penalty, chain.typical_p, chain.presence_penalty) == (1.1, 1.0, 0.0)
    assert resolve_sampling(SamplingParams(), flags).chain.temperature == 0.0
    plain = resolve_sampling(SamplingParams()).chain
    assert (plain.temperature, plain.top_k, plain.top_p, plain.min_p) == (0.8, 40, 0.95, 0.05)


def test_seeds_fall_back_too_and_minus_one_is_random() -> None:
    assert resolve_sampling(SamplingParams(seed=0), SamplingDefaults(seed=5)).seed == 0
    assert resolve_sampling(SamplingParams(), SamplingDefaults(seed=5)).seed == 5
    drawn = {resolve_sampling(SamplingParams(seed=-1), SamplingDefaults(seed=5)).seed for _ in range(4)}
    assert len(drawn) == 4 and all(0 <= seed < 2**32 for seed in drawn)


def test_every_bit_of_a_seed_counts() -> None:
    seeds = [0, 1, -2, 42, 1715852364, 2**32 - 1, 2**32, 2**64, 2**64 + 1, -(2**70)]
    assert len({derive_key(seed, choice) for seed in seeds for choice in (0, 1)}) == 2 * len(seeds)


def test_the_model_files_own_defaults_are_read() -> None:
    metadata = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.05,
        "general.sampling.top_p": "high",
    }
    assert read_sampling(metadata) == SamplingDefaults(temperature=0.6, top_k=20, repetition_penalty=1.05)


def test_counts_grow_with_the_answer() -> None:
    counts = TokenCounts([5, 3, 5])
    assert (counts.ids.tolist(), counts.counts.tolist()) == ([3, 5], [0, 0])
    for token in [5, *range(1000, 2000), 5]:
        counts.add(token)
    found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))
    assert found == {3: 0, 5: 2} | dict.fromkeys(range(1000, 2000), 1)


def test_repetition_counts_the_prompt_and_presence_the_answer() -> None:
    row = np.array([2.0, 1.9, 1.8], np.float32)
    kernels = RowKernels(3)
    greedy = {"temperature": 0.0}
    repeating = Sampler(resolve_sampling(SamplingParams(repetition_penalty=2.0, **greedy)), [0], 0, kernels)
    assert repeating.choose(row, 1) == 1
    repeating.accept(1)
    assert repeating.choose(row, 2) == 2
    presence = Sampler(resolve_sampling(SamplingParams(presence_penalty=1.0, **greedy)), [0], 0, kernels)
    assert presence.choose(row, 1) == 0
    presence.accept(0)
    assert presence.choose(row, 2) == 1


def test_a_mask_binds_whatever_the_bias() -> None:
    row = np.zeros(40, np.float32)
    sampling = resolve_sampling(SamplingParams(temperature=0.0, logit_bias={3: 100.0}))
    only_35 = np.array([0, 1 << 3], np.int32)
    assert Sampler(sampling, [], 0, RowKernels(40)).choose(row, 0, only_35) == 35
    with pytest.raises(ValueError, match="too short"):
        Sampler(sampling, [], 0, RowKernels(40)).choose(row, 0, only_35[:1])


def test_rows_of_another_shape_are_refused() -> None:
    sampler = Sampler(resolve_sampling(SamplingParams()), [], 0, RowKernels(40))
    for row in (np.zeros(41, np.float32), np.zeros(40), np.zeros((40, 2), np.float32)[:, 0]):
        with pytest.raises(ValueError, match="40 neighbouring"):
            sampler.choose(row, 0)


@pytest.mark.parametrize("n_top", [-1, 33])
def test_top_log_probabilities_are_bounded(n_top: int) -> None:
    with pytest.raises(ValueError, match="between 0 and 32"):
        read_logprobs(np.zeros(40, np.float32), 0, n_top, RowKernels(40))
