"""Recurrent steps and those on streams on a card: compiled code, run by `ptx_machine.py`, against the reference, and
the same bits however a sequence is cut and whatever runs beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[dev]'")

from models.recurrent_cases import CASES, read_in_chunks
from one_op import OneOp, loaded, make_batch, random
from phobos.program.steps import Add, Buffer, MatchLength, Mix, Op, Sparsify

pytestmark = pytest.mark.timeout(300)  # the first to want a kernel compiles it
N = 13
CHUNKS = (5, 1, 1, 2, 4)
QUICK = ("conv", "delta-per-row", "scan-groups")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_recurrent_steps(tmp_path: Path, name: str) -> None:
    with loaded(CASES[name](), tmp_path, "reference") as backend:
        want = backend.run(make_batch(range(N))).copy()
    with loaded(CASES[name](), tmp_path, "cuda") as backend:
        assert not backend.limits.can_cut and backend.limits.fork_block == 0
        plain = backend.run(make_batch(range(N))).copy()
        assert np.allclose(plain, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())
        for slot in (0, 1):  # from 0 on a used slot is new
            assert np.array_equal(read_in_chunks(backend, CHUNKS, slot), plain)


def test_states_are_kept_copied_and_put_back(tmp_path: Path) -> None:
    def rest(slot: int) -> np.ndarray:
        return backend.run(make_batch(range(8, N), 8, slot)).copy()

    with loaded(CASES["delta"](), tmp_path, "cuda") as backend:
        plain = backend.run(make_batch(range(N))).copy()[8:]
        backend.run(make_batch(range(8)))
        kept, whole = backend.save_state(0), backend.save(0, 8)
        assert backend.slot_bytes(8) >= len(whole)
        backend.copy_rows(0, 1, 8)
        assert np.array_equal(rest(0), plain) and np.array_equal(rest(1), plain)
        backend.release(1)
        with pytest.raises(ValueError, match="slot 1 stands at 0 and cannot go on from position 8"):
            rest(1)
        backend.restore(1, 8, whole, 8)
        assert np.array_equal(rest(1), plain)
        backend.restore_state(0, 8, kept)
        assert np.array_equal(rest(0), plain)
        with pytest.raises(ValueError, match="stands at 13, not at 8"):
            backend.save(1, 8)
        for wrong in (kept[:-4], kept + b"\0"):
            with pytest.raises(ValueError, match="bytes"):
                backend.restore_state(1, 8, wrong)


def test_streams(tmp_path: Path) -> None:
    """Mixed with and without coefficients and what is added to, lengths matched, and only the largest kept."""
    e = 48
    x, c, r, out = Buffer("x", 2 * e), Buffer("c", 6), Buffer("r", 3 * e), Buffer("out", 3 * e)
    inputs = {"x": random(1, N, 2 * e), "c": random(2, N, 6), "r": random(3, N, 3 * e)}
    wide, target = Buffer("x", 512), Buffer("t", 128)
    others = {"x": 2 * random(4, N, 512) + 0.3, "t": 5 * random(5, N, 128)}
    others["x"][4, :128] = 0
    cases: list[tuple[dict[str, np.ndarray], tuple[Op, ...], Buffer]] = [
        (inputs, (Mix(out, x, c, None, 3, 2, offset=0.5),), out),
        (inputs, (Mix(out, x, c, r, 3, 2),), out),
        (inputs, (Add(out, r, None), Mix(out, x, None, out, 1, 2, offset=1.0, skipped=2)), out),
        (others, (MatchLength(wide, target, 4),), wide),
        (others, (Sparsify(wide, 1.645),), wide),
    ]
    for given, ops, result in cases:
        found = []
        for kind in ("cuda", "reference"):
            with loaded(OneOp(given, ops, result), tmp_path, kind) as backend:
                found.append([backend.run(make_batch(tokens)).copy() for tokens in (range(N), range(N - 1, N))])
        (together, alone), want = found[0], found[1][0]
        assert np.allclose(together, want, rtol=1e-5, atol=2e-6), ops
        assert np.array_equal(together[-1], alone[0])
