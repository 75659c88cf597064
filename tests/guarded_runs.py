"""Runs tiny models with every buffer at a page nobody may touch: a process of its own, which dies where a kernel
reaches beside a buffer.

    PHOBOS_GUARD_PAGES=after python guarded_runs.py CASE...

A case is FAMILY/TYPE,TYPE,.../K-FORMAT/V-FORMAT. Prints each case when it is through.
"""

from __future__ import annotations

import faulthandler
import sys
import tempfile
from pathlib import Path

import numpy as np

from backend_runs import run_fork, run_pieces
from hostile_files import sound, write
from models.tiny_models import make_tokens
from one_op import join_batches, make_batch
from phobos.archs import build_program
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.kernels.backend import BackendLimits
from phobos.kernels.cpu.backend import CpuBackend

N_CTX, N_SLOTS, MAX_ROWS = 1100, 4, 71


def run_case(case: str, folder: Path) -> None:
    """Prompts of one row, of a few and of whole tiles, decoding beside them, reuse, forks, far positions."""
    family, kinds, k_format, v_format = case.split("/")
    path = write(sound(family, tuple(GGMLType[kind] for kind in kinds.split(","))), folder / "m.gguf")
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(N_CTX, N_SLOTS, MAX_ROWS, MAX_ROWS, program.n_vocab, cache_k=k_format, cache_v=v_format)
        backend = CpuBackend(program, gguf, limits, 2, lambda progress: None)
    try:
        run_pieces(backend)
        for slot in range(N_SLOTS):
            backend.release(slot)
        tokens = make_tokens(N_CTX)
        for first in range(0, N_CTX, MAX_ROWS):  # a whole context, in passes as wide as they may be
            backend.run(make_batch(tokens[first : first + MAX_ROWS], first, N_SLOTS - 1))
        rows = [make_batch(tokens[:3], 0, 0), make_batch(tokens[:1], 0, 1), make_batch(tokens[:7], 0, 2)]
        backend.run(join_batches(*rows))
        backend.release(0)
        if backend.limits.fork_block:
            run_fork(backend)
        assert np.isfinite(backend.run(make_batch(tokens[:1], 0, 1))).all()
    finally:
        backend.close()


if __name__ == "__main__":
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        for case in sys.argv[1:]:
            print("runs", case, flush=True)
            run_case(case, Path(folder))
            print("held", case, flush=True)
