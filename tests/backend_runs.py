"""Passes of all kinds, run on any backend, to compare what comes of them bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.tiny_models import make_tokens
from one_op import join_batches, make_batch
from phobos.kernels.backend import Backend

N = 20


def run_pieces(backend: Backend) -> list[np.ndarray]:
    """Logits of a prompt in pieces, of one beside another slot, of copies, saved states, and where they can, forks."""
    tokens = make_tokens(N)
    found = [backend.run(make_batch(tokens[a:b], a)).copy() for a, b in ((0, 9), (9, 10), (10, 18))]
    state = backend.save_state(0)
    backend.copy_rows(0, 2, 18)
    backend.restore_state(2, 18, state)
    backend.run(make_batch(tokens[:5], 0, 1))
    mixed = join_batches(make_batch(tokens[5:6], 5, 1), make_batch(tokens[18:], 18, 2))
    found.append(backend.run(mixed).copy())
    found.append(backend.choose(replace(mixed, positions=mixed.positions + np.array([1, 2, 2], np.int32)), 40)[:, None])
    saved = backend.save(1, 7)
    backend.release(1)
    backend.restore(1, 7, saved, 7)
    found.append(backend.run(make_batch(tokens[7:9], 7, 1)).copy())
    for wrong in (saved[:-1], saved + b"\0", b""):
        with pytest.raises(ValueError, match="bytes"):
            backend.restore(1, 7, wrong, 7)
    return found


def run_fork(backend: Backend) -> np.ndarray:
    """Logits of rows that share one block with their slot; a part of the next one is copied."""
    block = backend.limits.fork_block
    backend.run(make_batch(make_tokens(block + 6)))
    backend.copy_within(0, block, 2 * block, 4)
    rows = make_batch(make_tokens(3), block + 4)
    fork = replace(rows, places=rows.positions + block, shared=np.full(3, block, np.int32))
    return backend.run(fork).copy()


def assert_same(found: list[np.ndarray], want: list[np.ndarray]) -> None:
    for got, expected in zip(found, want, strict=True):
        assert np.array_equal(got, expected)
