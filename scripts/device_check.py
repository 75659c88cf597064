"""Check Phobos on a graphics card, and measure it: `python scripts/device_check.py [FOLDER WITH MODELS] [CARD NUMBER]`.

Needs a card, a driver, and `pip install '.[cuda,dev]'`; nothing else. Runs the tests of the CUDA kernels on the card
itself, then for each real model that is there: closeness to the CPU backend, equal bits of rows in any company, speed
of decoding and prompts against the card's own copy bandwidth and dot product rate. One table, in under six minutes:
what does not fit in is left out and said.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from phobos.archs import build_program
from phobos.errors import PhobosError
from phobos.gguf.reader import open_gguf
from phobos.kernels.backend import Backend, BackendLimits, Batch
from phobos.kernels.cuda.backend import CudaBackend
from phobos.kernels.cuda.card import Launch, NvidiaCard, missing_part
from phobos.kernels.cuda.compiler import load_code
from phobos.kernels.cuda.layout import NORM_THREADS
from phobos.kernels.cuda.probe import PRODUCTS

LIMIT_S = 340.0
TEST_S = 150.0  # of them for the tests of kernels
ROOT = Path(__file__).resolve().parent.parent
COPY_BYTES = 1 << 30
N_COMPARED, N_DECODED, N_PROMPT = 96, 128, 512
Row = tuple[str, str, str]


def time_best(run: Callable[[], None], repeats: int = 3) -> float:
    """Seconds of the fastest of some runs, after one that is not counted."""
    run()
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best


def measure_roofs(card: NvidiaCard) -> tuple[float, float]:
    """(bytes/s of a copy, counting both ways; operations/s of `dp4a`) of this card."""
    source, target = card.allocate(COPY_BYTES), card.allocate(COPY_BYTES)

    def copy() -> None:
        card.copy(target, source, COPY_BYTES)
        card.synchronize()

    bandwidth = 2 * COPY_BYTES / time_best(copy)
    name = "probe:multiply"
    card.load({name: load_code([name], [card.target])[name, card.target]})
    n_blocks, n_turns = card.n_processors * 16, 20_000
    out = card.allocate(4 * n_blocks * NORM_THREADS)
    recording = card.record([Launch(name, (out, n_turns), (n_blocks, 1, 1), NORM_THREADS)])

    def multiply() -> None:
        card.replay(recording)
        card.synchronize()

    return bandwidth, 8.0 * PRODUCTS * n_turns * n_blocks * NORM_THREADS / time_best(multiply)


def run_tests(number: int) -> Row:
    """The kernels' and the backend's own tests, on the card."""
    files = ["tests/kernels/test_cuda_kernels.py", "tests/kernels/test_cuda_backend.py"]
    environment = {**os.environ, "PHOBOS_TEST_CARD": str(number)}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--no-header", *files]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "every kernel against the reference", f"not done in {TEST_S:.0f} s", "cut"
    print(done.stdout[-3000:], done.stderr[-2000:], file=sys.stderr)
    lines = done.stdout.strip().splitlines() or ["no output"]
    return "every kernel against the reference", lines[-1], "ok" if done.returncode == 0 else "FAILED"


def make_rows(tokens: np.ndarray, first: int, slot: int = 0, *, wanted: bool = True) -> Batch:
    """Rows of one slot; all wanted, or the last."""
    n = len(tokens)
    positions = np.arange(first, first + n, dtype=np.int32)
    outputs = np.arange(n, dtype=np.int32) if wanted else np.array([n - 1], np.int32)
    return Batch(tokens, positions, np.full(n, slot, np.int32), outputs)


def compare(card: Backend, cpu: Backend, tokens: np.ndarray) -> list[Row]:
    """Closeness of the distributions, and equal bits over chunks and company."""
    got, want = (backend.run(make_rows(tokens, 0)).astype(np.float64) for backend in (card, cpu))
    logs = [x - x.max(axis=1, keepdims=True) for x in (want, got)]
    logs = [x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in logs]
    divergence = float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1).mean())
    same = float((got.argmax(axis=1) == want.argmax(axis=1)).mean())
    rows: list[Row] = [
        ("  against the CPU backend", f"KL {divergence:.1e}, top-1 {same:.1%}", "ok" if divergence < 1e-2 else "FAILED")
    ]
    plain = card.run(make_rows(tokens, 0)).copy()
    pieces = [card.run(make_rows(tokens[a:b], a, 1)).copy() for a, b in ((0, 1), (1, 8), (8, 40), (40, len(tokens)))]
    card.copy_rows(0, 2, 50)
    joined = np.concatenate(pieces), card.run(make_rows(tokens[50:], 50, 2)).copy()
    is_equal = np.array_equal(joined[0], plain) and np.array_equal(joined[1], plain[50:])
    rows.append(
        ("  rows over chunks, slots and copies", "==" if is_equal else "differ", "ok" if is_equal else "FAILED")
    )
    return rows


def measure(backend: Backend, tokens: np.ndarray, roofs: tuple[float, float], n_params: int) -> list[Row]:
    """Speed of decoding after a prompt, and of a prompt."""

    def decode() -> None:
        for i in range(N_DECODED):
            backend.run(make_rows(tokens[i : i + 1], N_PROMPT + i))

    def prompt() -> None:
        backend.run(make_rows(tokens[:N_PROMPT], 0, wanted=False))

    prompt_s = time_best(prompt) / N_PROMPT
    decode_s = time_best(decode, 2) / N_DECODED
    moved = backend.memory()["weights"] / decode_s
    rate = 2 * n_params / prompt_s
    return [
        ("  decode", f"{1 / decode_s:.0f} tok/s, {moved / 1e9:.0f} GB/s", f"{moved / roofs[0]:.0%} of copying"),
        ("  prompt", f"{1 / prompt_s:.0f} tok/s, {rate / 1e12:.1f} Tops/s", f"{rate / roofs[1]:.0%} of dp4a"),
    ]


def check_model(path: Path, number: int, roofs: tuple[float, float]) -> list[Row]:
    """One real model."""
    from phobos.kernels.cpu.backend import CpuBackend

    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(1024, 3, N_PROMPT, N_COMPARED, program.n_vocab)
        n_params = sum(int(np.prod(t.shape)) for name, t in gguf.tensors.items() if name != "token_embd.weight")
        tokens = np.random.default_rng(1).integers(0, program.n_vocab, 1024, dtype=np.int32)
        card = CudaBackend(program, gguf, limits, NvidiaCard(number), lambda progress: None)
        try:
            rows: list[Row] = [(path.name, f"{card.memory()['weights'] / 1e6:.0f} MB of weights", "")]
            cpu = CpuBackend(program, gguf, limits, None, lambda progress: None)
            try:
                rows += compare(card, cpu, tokens[:N_COMPARED])
            finally:
                cpu.close()
            return rows + measure(card, tokens, roofs, n_params)
        finally:
            card.close()


def main(arguments: Sequence[str]) -> int:
    """Print the table; 0 where nothing failed."""
    started = time.perf_counter()
    folder = Path(arguments[0]) if arguments else ROOT / "models"
    number = int(arguments[1]) if len(arguments) > 1 else 0
    missing = missing_part()
    if missing is not None:
        print(f"there is nothing to check: {missing}", file=sys.stderr)
        return 2
    card = NvidiaCard(number)
    roofs = measure_roofs(card)
    rows: list[Row] = [
        (card.name, f"compute capability {card.target[0]}.{card.target[1]}", f"{card.n_processors} multiprocessors"),
        ("copy, both ways counted", f"{roofs[0] / 1e9:.0f} GB/s", ""),
        ("dp4a", f"{roofs[1] / 1e12:.1f} Tops/s", ""),
    ]
    card.close()
    rows.append(run_tests(number))
    for path in sorted(folder.glob("*.gguf")) if folder.is_dir() else ():
        if time.perf_counter() - started > LIMIT_S * 0.8:
            rows.append((path.name, "left out: no time", "cut"))
            continue
        try:
            rows += check_model(path, number, roofs)
        except PhobosError as error:
            rows.append((path.name, str(error), "FAILED"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print(f"{time.perf_counter() - started:.0f} s")
    return 1 if any(row[2] == "FAILED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
