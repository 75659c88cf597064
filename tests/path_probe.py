"""Run tiny models on the instruction path that `PHOBOS_CPU_PATH` forces, in a process of its own.

    python path_probe.py OUT.npz MODEL.gguf...

Writes the logits of each model's last rows, and the path's name.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from models.tiny_models import make_tokens
from phobos.archs import build_program
from phobos.gguf.reader import open_gguf
from phobos.kernels.backend import BackendLimits, Batch
from phobos.kernels.cpu.backend import CpuBackend

N_TOKENS = 560


def run_model(path: Path) -> np.ndarray:
    """Logits: of a prompt's rows in two chunks, then of single rows."""
    found = []
    tokens = make_tokens(N_TOKENS)
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(N_TOKENS, 1, N_TOKENS, N_TOKENS, program.n_vocab)
        backend = CpuBackend(program, gguf, limits, 2, lambda progress: None)
        for first, last in ((0, 200), (200, 550), *((i, i + 1) for i in range(550, N_TOKENS))):
            rows = np.arange(last - first, dtype=np.int32)
            found.append(backend.run(Batch(tokens[first:last], rows + first, 0 * rows, rows)).copy())
        backend.close()
    return np.concatenate(found)


if __name__ == "__main__":
    from phobos.kernels.cpu.features import CPU

    out, *models = sys.argv[1:]
    np.savez(out, path=np.array(CPU.name), **{Path(model).stem: run_model(Path(model)) for model in models})
