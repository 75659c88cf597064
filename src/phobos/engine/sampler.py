"""How a sequence chooses its next token: settings resolved once, then one compiled call a token.

Owns the order in which settings fall back, seeds, and the counts that penalties need. The chain itself is
`kernels/cpu/code/sampling.py`. A draw depends on the logits, the tokens so far, the seed and the token's position, and
on nothing else: the same alone, in a batch, or after a reused prefix.

Repetition counts the tokens of prompt and answer, presence and frequency those of the answer.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from phobos.chat.messages import MAX_TOP_LOGPROBS, SamplingParams
from phobos.kernels.backend import FloatArray, IntArray
from phobos.kernels.sampling import NO_IDS, Chain, RowKernels
from phobos.sampling_fields import resolve
from phobos.settings import SamplingDefaults


class Constraint(Protocol):
    """What may follow, as a grammar sees it; one a sequence, used by the engine thread."""

    @property
    def is_cut(self) -> bool:
        """Whether the answer was brought to its end because its tokens ran out."""

    def allow(self, n_tokens: int) -> None:
        """The answer will have this many tokens at most; called once, before all others."""

    def prepare(self) -> None:
        """A pass begins whose logits the next mask is for: its computation may begin too."""

    def mask(self) -> IntArray | None:
        """int32 [ceil(n_vocab / 32)]: bit `i % 32` of word `i // 32` is set where token `i` may follow; None: any."""

    def extend(self, token: int) -> int:
        """The token to take for one that was chosen: itself, or one that says the same and what must follow anyway."""

    def accept(self, token: int) -> None:
        """The token was chosen."""

    def foresee(self) -> Sequence[int]:
        """Tokens that nothing but can follow, as far as that is known; asked between `accept` and `prepare`."""

    def count_allowed(self, guess: Sequence[int]) -> int:
        """How many tokens of a guess, from its first on, may follow; asked when `foresee` is."""


@dataclass(frozen=True)
class Sampling:
    """Every setting decided; `seed` is the one that was used, to be told to the client."""

    chain: Chain
    seed: int


def resolve_sampling(params: SamplingParams, *defaults: SamplingDefaults) -> Sampling:
    """Fill in what was not sent from `defaults` (first the flags, then the model file's), then Phobos's own."""
    values = resolve(params, *defaults)
    seed = int(values.pop("seed"))
    biases = sorted(params.logit_bias.items())
    chain = Chain(
        **values,
        bias_ids=np.array([token for token, _ in biases], np.int32),
        bias_values=np.array([value for _, value in biases], np.float32),
    )
    return Sampling(chain, secrets.randbits(32) if seed == -1 else seed)


def derive_key(seed: int, choice: int) -> int:
    """The generator's key: any integer seed counts whole, and each choice of a request draws its own numbers."""
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class TokenCounts:
    """The distinct tokens so far, and how often each stands in the answer, as arrays that grow."""

    def __init__(self, prompt: Iterable[int]) -> None:
        distinct = sorted(set(prompt))
        self._ids: IntArray = np.empty(len(distinct) + 256, np.int32)
        self._counts: IntArray = np.zeros(len(distinct) + 256, np.int32)
        self._ids[: len(distinct)] = distinct
        self._places = {token: place for place, token in enumerate(distinct)}

    def add(self, token: int) -> None:
        """Count one token of the answer."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1

    @property
    def ids(self) -> IntArray:
        """The distinct tokens."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> IntArray:
        """For each of `ids`, how often it stands in the answer."""
        return self._counts[: len(self._places)]


@dataclass(frozen=True)
class Logprobs:
    """Natural log-probabilities under the raw distribution: the token's, and the most probable tokens, best first."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Sampler:
    """Chooses the tokens of one sequence."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int], choice: int, kernels: RowKernels) -> None:
        self.sampling = sampling
        self._key = derive_key(sampling.seed, choice)
        self._kernels = kernels
        self._chain = sampling.chain
        self._counts = TokenCounts(prompt) if sampling.chain.has_penalties else None

    @property
    def takes_best(self) -> bool:
        """Whether the token is always that of the greatest logit, the lowest id of several."""
        chain = self._chain
        return self._counts is None and not len(chain.bias_ids) and (chain.scale <= 0 or chain.top_k == 1)

    def choose(self, logits: FloatArray, position: int, mask: IntArray | None = None) -> int | None:
        """The token at `position`, from `logits` [n_vocab]; None where no token can follow."""
        counts = self._counts
        return self._kernels.draw(
            logits,
            self._chain,
            self._key,
            position,
            mask=NO_IDS if mask is None else mask,
            seen_ids=NO_IDS if counts is None else counts.ids,
            seen_counts=NO_IDS if counts is None else counts.counts,
        )

    def accept(self, token: int) -> None:
        """The token stands; penalties count it from now on."""
        if self._counts is not None:
            self._counts.add(token)


def read_logprobs(logits: FloatArray, token: int, n_top: int, kernels: RowKernels) -> Logprobs:
    """The log-probability of `token` and the `n_top` best (at most 32); NaN where the row is no distribution."""
    if not 0 <= n_top <= MAX_TOP_LOGPROBS:
        raise ValueError(f"top_logprobs is {n_top}; it must be between 0 and {MAX_TOP_LOGPROBS}")
    logprob, ids, values = kernels.log_probabilities(logits, token, n_top)
    return Logprobs(logprob, tuple(ids.tolist()), tuple(values.tolist()))
