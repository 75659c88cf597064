"""Bit-exact rows: `==`, not closeness, over threads, prompt chunks, company and reused prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from golden import values
from models.family_models import FAMILIES, write_family_model
from models.tiny_models import PACKED_TYPES, RARE_TYPES, RECIPES, SMALL_TYPES, make_tokens, write_tiny_model
from phobos.archs import build_program
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.gguf.tokenizer import load_tokenizer
from phobos.kernels.backend import Backend, BackendLimits, Batch
from phobos.kernels.cpu.backend import CpuBackend

pytestmark = pytest.mark.timeout(600)  # single rows of a real model, on a machine that has other work
N_SLOTS = 3
# The packed types; a model whose rows are whole blocks of 32 only; a model of windows.
TINY = {
    "llama": ("llama", PACKED_TYPES),
    "qwen2": ("qwen2", (GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.Q5_1)),
    "gemma3": ("gemma3", (GGMLType.Q4_K, GGMLType.Q6_K, *SMALL_TYPES)),
    "rare": ("llama-untied", RARE_TYPES),
}
# Slots that cannot be cut back: delta nets and attention; decays of each row and latent attention; nothing but scans.
RECURRENT = ("qwen35", *(pytest.param(name, marks=pytest.mark.slow) for name in ("kimi-linear", "mamba2")))


@dataclass(frozen=True)
class Case:
    """A model, what it reads, how logits are wanted, and the logits of a plain run: one prompt in chunks of 512."""

    path: Path
    tokens: np.ndarray
    positions: tuple[int, ...]
    plain: np.ndarray


@contextmanager
def opened(path: Path, n_ctx: int, n_threads: int = 2) -> Iterator[Backend]:
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(n_ctx, N_SLOTS, max_rows=600, max_outputs=16, n_vocab=program.n_vocab)
        backend = CpuBackend(program, gguf, limits, n_threads, lambda progress: None)
        try:
            yield backend
        finally:
            backend.close()


def read(
    backend: Backend,
    tokens: np.ndarray,
    positions: tuple[int, ...],
    *,
    chunk: int = 512,
    slot: int = 0,
    start: int = 0,
    company: Callable[[int], Batch | None] = lambda turn: None,
) -> np.ndarray:
    """Logits [n, n_vocab] at those of `positions` from `start` on. `company(turn)` are rows of other slots, put before
    the chunk's rows at even turns and after them at odd ones."""
    found = []
    for turn, first in enumerate(range(start, len(tokens), chunk)):
        last = min(first + chunk, len(tokens))
        mine = np.arange(first, last, dtype=np.int32)
        outputs = np.array([p - first for p in positions if first <= p < last], np.int32)
        parts = [(tokens[first:last], mine, np.full(len(mine), slot, np.int32))]
        other = company(turn)
        if other is not None:
            theirs = (other.tokens, other.positions, other.slots)
            parts = [theirs, *parts] if turn % 2 == 0 else [*parts, theirs]
            outputs = outputs + (len(other.tokens) if turn % 2 == 0 else 0)
        columns = [np.concatenate(column).astype(np.int32) for column in zip(*parts, strict=True)]
        logits = backend.run(Batch(*columns, outputs.astype(np.int32)))
        found += list(logits.copy())
    return np.array(found)


def make_case(path: Path, tokens: np.ndarray) -> Case:
    n = len(tokens)
    positions = tuple(sorted({0, 1, 6, 7, 63, 64, 200, 511, 512, n - 2, n - 1}))
    with opened(path, n + 8) as backend:
        return Case(path, tokens, positions, read(backend, tokens, positions))


CASES = (
    "llama",
    "qwen2",
    "gemma3",
    pytest.param("rare", marks=pytest.mark.slow),
    *RECURRENT,
    pytest.param("smollm2", marks=pytest.mark.model),
)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if request.param in TINY:
        recipe, kinds = TINY[request.param]
        path = write_tiny_model(RECIPES[recipe], tmp_path_factory.mktemp("equality") / "model.gguf", kinds)
        return make_case(path, make_tokens(590, seed=5))
    if request.param in FAMILIES:
        family = FAMILIES[request.param]
        path = write_family_model(family, tmp_path_factory.mktemp("equality") / "model.gguf", family.mixed)
        return make_case(path, make_tokens(590, seed=5))
    found = values.find_model(values.MODEL_FILES[0])
    if found is None:
        pytest.skip(f"{values.MODEL_FILES[0]} is not here: run `make test`, which fetches it")
    with open_gguf(found) as gguf:
        return make_case(found, np.array(load_tokenizer(gguf).encode(values.TEXT.read_text())[:530], np.int32))


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads(case: Case, n_threads: int) -> None:
    with opened(case.path, 600, n_threads) as backend:
        for chunk in (600, 100):
            assert np.array_equal(read(backend, case.tokens, case.positions, chunk=chunk), case.plain)


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_chunks(case: Case, chunk: int) -> None:
    with opened(case.path, 600) as backend:
        assert np.array_equal(read(backend, case.tokens, case.positions, chunk=chunk), case.plain)


@pytest.mark.parametrize("chunk", [5, 64, 512])
def test_beside_rows_of_other_slots(case: Case, chunk: int) -> None:
    """One neighbour reads three rows a turn, another starts later and reads one."""

    def company(turn: int) -> Batch | None:
        first, second = np.arange(3 * turn, 3 * turn + 3), np.arange(max(0, turn - 1), turn)
        positions = np.concatenate([first, second]).astype(np.int32)
        slots = np.array([0] * len(first) + [2] * len(second), np.int32)
        return Batch((case.tokens[positions] + 1) % 100, positions, slots, np.empty(0, np.int32))

    with opened(case.path, 600) as backend:
        got = read(backend, case.tokens, case.positions, chunk=chunk, slot=1, company=company)
    assert np.array_equal(got, case.plain)


@pytest.mark.parametrize("n_reused", [1, 37, 64, 300, 513])
def test_reused_prefix(case: Case, n_reused: int) -> None:
    """Copied to another slot, and saved and restored into one that held something else."""
    later = np.array([p >= n_reused for p in case.positions])
    with opened(case.path, 600) as backend:
        read(backend, case.tokens if backend.limits.can_cut else case.tokens[:n_reused], (), slot=0)
        read(backend, case.tokens[::-1][:100].copy(), (), slot=2)
        backend.copy_rows(0, 1, n_reused)
        got = read(backend, case.tokens, case.positions, slot=1, start=n_reused)
        assert np.array_equal(got, case.plain[later])
        state = backend.save(0, n_reused)
        backend.release(0)
        backend.restore(2, n_reused, state, n_reused)
        assert np.array_equal(read(backend, case.tokens, case.positions, slot=2, start=n_reused, chunk=64), got)
        for wrong in (state[:-1], state + b"\0"):
            with pytest.raises(ValueError, match="bytes"):
                backend.restore(0, n_reused, wrong, n_reused)


def test_a_shortened_slot_is_written_over(case: Case) -> None:
    """A slot that held a longer, other text goes on from a common prefix as if that had never been there."""
    other = case.tokens.copy()
    other[100:] = (other[100:] + 1) % 100
    with opened(case.path, 600) as backend:
        read(backend, other, ())
        if not backend.limits.can_cut:
            with pytest.raises(ValueError, match="slot 0 stands at 590 and cannot go on from position 100"):
                read(backend, case.tokens, case.positions, start=100)
            return
        got = read(backend, case.tokens, case.positions, start=100)
    assert np.array_equal(got, case.plain[np.array([p >= 100 for p in case.positions])])


@pytest.mark.parametrize(("n_shared", "chunk"), [(300, 5), (129, 64), (64, 3)])
def test_forks_of_a_slot(case: Case, n_shared: int, chunk: int) -> None:
    """Three runs go on from one beginning, side by side in the same passes and the same slot, each where it is put; the
    third takes over from the second what that has read."""
    block, n = 64, len(case.tokens)
    begun = n_shared // block * block
    size = (n - begun + block - 1) // block * block
    other = (case.tokens + 1) % 100
    taken = n_shared + 2 * chunk
    with opened(case.path, 3 * size + n_shared + 2 * block) as backend:
        if not backend.limits.fork_block:
            pytest.skip("a slot of a recurrent model has one state, so nothing forks in it")
        read(backend, case.tokens[:n_shared], (), slot=1)
        first = (n_shared + block - 1) // block * block
        runs = [(case.tokens, first + i * size, n_shared) for i in (0, 2)]
        runs.insert(1, (np.concatenate([case.tokens[:n_shared], other[n_shared:]]), first + size, n_shared))
        for place in (first, first + size):
            backend.copy_within(1, begun, place, n_shared - begun)
        found: list[list[np.ndarray]] = [[], [], []]
        for turn, start in enumerate(range(n_shared, n, chunk)):
            if start == taken:  # what the first has read until now
                backend.copy_within(1, first, first + 2 * size, taken - begun)
            here = [i for i in range(3) if i < 2 or start >= taken][:: 1 if turn % 2 else -1]
            end = min(start + chunk, n)
            columns: list[list[np.ndarray]] = [[], [], [], []]
            outputs, n_rows = [], 0
            for i in here:
                tokens, place, _ = runs[i]
                positions = np.arange(start, end)
                values_of = (tokens[start:end], positions, positions + place - begun, np.full(end - start, begun))
                for column, values_ in zip(columns, values_of, strict=True):
                    column.append(values_)
                outputs += [n_rows + p - start for p in case.positions if start <= p < end]
                n_rows += end - start
            tokens_, positions_, places, shared = (np.concatenate(c).astype(np.int32) for c in columns)
            slots = np.full(n_rows, 1, np.int32)
            batch = Batch(tokens_, positions_, slots, np.array(outputs, np.int32), places, shared)
            logits = iter(backend.run(batch).copy())
            for i in here:
                found[i] += [next(logits) for p in case.positions if start <= p < end]
        plain = read(backend, runs[1][0], case.positions, slot=0)
    wanted = case.plain[[p >= n_shared for p in case.positions]]
    assert np.array_equal(found[0], wanted)
    assert np.array_equal(found[2], case.plain[[p >= taken for p in case.positions]])
    assert np.array_equal(found[1], plain[[p >= n_shared for p in case.positions]])
