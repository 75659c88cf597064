"""Check Phobos on a graphics card, and measure it:
`python scripts/checks/device_check.py [FOLDER WITH MODELS] [CARD NUMBER]`.

Needs a card, a driver, NumPy, numba-cuda with its compiler, and for the tests pytest with pytest-timeout (all of it
comes with `pip install '.[cuda,dev]'`); Phobos itself may be run from the working tree as it is. Compiles every kernel,
measures what the card can do at most, runs the tests of the kernels and of the backend on the card, then for each real
model that is there, or where there is none for one made up in the shape of a 1.5B: closeness to the CPU backend, equal
bits of rows in any company, speed of decoding and prompts. One table, row by row as they come, in under six minutes:
what does not fit in is left out and said, and what fails does not keep the rest from running.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import itertools
import os
import pkgutil
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])
)  # of workers

import numpy as np

from models.gguf_writer import random_blocks, write_gguf
from phobos.archs import build_program
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import GGUF, open_gguf
from phobos.kernels.backend import Backend, BackendLimits, Batch
from phobos.kernels.cuda.backend import CudaBackend
from phobos.kernels.cuda.card import GridLaunch, NvidiaCard, missing_part
from phobos.kernels.cuda.compiler import load_code
from phobos.kernels.cuda.declaration import Kernel
from phobos.kernels.cuda.layout import NORM_THREADS, WARP
from phobos.kernels.placing.split import SplitBackend, Stage
from phobos.program.stages import cut_program, find_borders
from phobos.program.steps import Program

LIMIT_S = 340.0
TEST_S = 120.0  # of them for the tests of kernels
MODEL_S = 60.0  # what a model may take: none is begun with less left
COPY_BYTES = 1 << 30
N_COMPARED, N_DECODED, N_PROMPT, N_TOGETHER = 96, 128, 512, 8
N_TURNS, N_LAUNCHES = 20_000, 500
PACKAGES = ("numpy", "numba", "numba-cuda", "llvmlite", "cuda-bindings", "nvidia-nvvm", "nvidia-nvjitlink", "pytest")
STARTED_S = time.perf_counter()
Row = tuple[str, str, str]


@dataclass(frozen=True)
class Roofs:
    """What the card does at most: bytes/s of a copy, counting both ways; operations/s of `dp4a` and of `mma` with 8-bit
    values; seconds of a launch that does nothing, inside a recorded pass."""

    copy: float
    dot: float
    tile: float
    launch_s: float


class Table:
    """Prints rows as they come, and remembers whether one failed."""

    def __init__(self) -> None:
        self.failed = False

    def add(self, *rows: Row) -> None:
        for name, value, verdict in rows:
            self.failed |= verdict == "FAILED"
            print(f"{name:<44} {value:<42} {verdict}".rstrip(), flush=True)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What goes wrong in here is a row, and its traceback on standard error."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add((name, f"{type(error).__name__}: {error}", "FAILED"))


def time_best(run: Callable[[], None], repeats: int = 3) -> float:
    """Seconds of the fastest of some runs, after one that is not counted."""
    run()
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best


def describe_machine() -> list[Row]:
    """Versions of what computes here."""

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "none"

    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return [(f"Python {platform.python_version()}, {os.cpu_count()} processors", versions, "")]


def all_kernels() -> list[str]:
    """Names of all kernels for cards."""
    package = importlib.import_module("phobos.kernels.cuda.code")
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    found = {value.name for module in modules for value in vars(module).values() if isinstance(value, Kernel)}
    return sorted(found)


def compile_all(card: NvidiaCard) -> list[Row]:
    """Every kernel to machine code, and loaded."""
    names = all_kernels()
    started = time.perf_counter()
    code = load_code(names, [card.target])
    compiled_s = time.perf_counter() - started
    card.load({name: code[name, card.target] for name in names})
    n_new = sum(not kernel.cached for kernel in code.values())
    return [("kernels compiled and loaded", f"{len(names)}, {n_new} of them anew, in {compiled_s:.0f} s", "ok")]


def measure_roofs(card: NvidiaCard) -> Roofs:
    """See `Roofs`."""
    from phobos.kernels.cuda.code.probe import PRODUCTS, TILE_OPERATIONS

    source, target = card.allocate(COPY_BYTES), card.allocate(COPY_BYTES)

    def copy() -> None:
        card.copy(target, source, COPY_BYTES)
        card.synchronize()

    bandwidth = 2 * COPY_BYTES / time_best(copy)
    names = ["probe:multiply", "probe:multiply_tiles"]
    code = load_code(names, [card.target])
    card.load({name: code[name, card.target] for name in names})
    n_blocks = card.n_processors * 16
    out = card.allocate(4 * n_blocks * NORM_THREADS)

    def time_of(*launches: GridLaunch) -> float:
        recording = card.record(launches)

        def run() -> None:
            card.replay(recording)
            card.synchronize()

        return time_best(run)

    def rate(name: str, n_operations: float) -> float:
        launch = GridLaunch(name, (out, N_TURNS), (n_blocks, 1, 1), NORM_THREADS)
        return n_operations * PRODUCTS * N_TURNS * n_blocks * NORM_THREADS / time_of(launch)

    nothing = GridLaunch(names[0], (out, 0), (1, 1, 1), NORM_THREADS)
    launch_s = time_of(*[nothing] * N_LAUNCHES) / N_LAUNCHES
    return Roofs(bandwidth, rate(names[0], 8.0), rate(names[1], TILE_OPERATIONS / WARP), launch_s)


def run_tests(number: int) -> Row:
    """The kernels' and the backend's own tests, on the card."""
    files = [f"tests/kernels/test_cuda_{name}.py" for name in ("kernels", "joined", "recurrent", "backend")]
    environment = {**os.environ, "PHOBOS_TEST_CARD": str(number)}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--no-header", "-p", "no:cacheprovider"]
    command += ["-W", "default", *files]  # what versions of packages warn of is not asked here
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TEST_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        print(error.stdout, error.stderr, file=sys.stderr)
        return "every kernel against the reference", f"not done in {TEST_S:.0f} s", "cut"
    print(done.stdout[-6000:], done.stderr[-2000:], file=sys.stderr)
    lines = done.stdout.strip().splitlines() or ["no output"]
    return "every kernel against the reference", lines[-1], "ok" if done.returncode == 0 else "FAILED"


def make_rows(tokens: np.ndarray, first: int, slot: int = 0, *, wanted: bool = True) -> Batch:
    """Rows of one slot; all wanted, or the last."""
    n = len(tokens)
    positions = np.arange(first, first + n, dtype=np.int32)
    outputs = np.arange(n, dtype=np.int32) if wanted else np.array([n - 1], np.int32)
    return Batch(tokens, positions, np.full(n, slot, np.int32), outputs)


def compare_with_cpu(
    card: Backend, program: Program, gguf: GGUF, limits: BackendLimits, tokens: np.ndarray
) -> list[Row]:
    """Closeness of the distributions to those of the CPU backend."""
    from phobos.kernels.cpu.backend import CpuBackend

    got = card.run(make_rows(tokens, 0)).astype(np.float64)
    cpu = CpuBackend(program, gguf, limits, None, lambda progress: None)
    try:
        want = cpu.run(make_rows(tokens, 0)).astype(np.float64)
    finally:
        cpu.close()
    logs = [x - x.max(axis=1, keepdims=True) for x in (want, got)]
    logs = [x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in logs]
    divergence = float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1).mean())
    same = float((got.argmax(axis=1) == want.argmax(axis=1)).mean())
    verdict = "ok" if divergence < 1e-2 else "FAILED"
    return [("  against the CPU backend", f"KL {divergence:.1e}, top-1 {same:.1%}", verdict)]


def compare_rows(card: Backend, tokens: np.ndarray) -> list[Row]:
    """Equal bits over chunks and company, and tokens chosen on the card."""
    plain = card.run(make_rows(tokens, 0)).copy()
    cuts, half = (0, 1, 8, len(tokens) // 3, len(tokens)), len(tokens) // 2
    pieces = [card.run(make_rows(tokens[a:b], a, 1)).copy() for a, b in itertools.pairwise(cuts)]
    card.copy_rows(0, 2, half)
    joined = np.concatenate(pieces), card.run(make_rows(tokens[half:], half, 2)).copy()
    is_equal = np.array_equal(joined[0], plain) and np.array_equal(joined[1], plain[half:])
    chosen = card.choose(make_rows(tokens, 0), plain.shape[1]).tolist() == plain.argmax(axis=1).tolist()
    return [
        ("  rows over chunks, slots and copies", "==" if is_equal else "differ", "ok" if is_equal else "FAILED"),
        ("  tokens chosen on the card", "==" if chosen else "differ", "ok" if chosen else "FAILED"),
    ]


def compare_parted(
    whole: Backend, program: Program, gguf: GGUF, limits: BackendLimits, number: int, tokens: np.ndarray
) -> list[Row]:
    """The model in two stages, both on the card: the bits it has whole."""
    borders = find_borders(program)
    if not borders:
        return []
    want = whole.run(make_rows(tokens, 0)).copy()
    with contextlib.ExitStack() as stack:
        stages = []
        for part in cut_program(program, [borders[len(borders) // 2]]):
            backend = CudaBackend(part, gguf, limits, NvidiaCard(number), lambda progress: None)
            stack.callback(backend.close)
            stages.append(Stage(backend, f"cuda:{number}", 0, 1))
        is_equal = np.array_equal(SplitBackend(stages).run(make_rows(tokens, 0)), want)
    return [("  layers in two parts", "==" if is_equal else "differ", "ok" if is_equal else "FAILED")]


def measure(backend: CudaBackend, gguf: GGUF, tokens: np.ndarray, roofs: Roofs) -> list[Row]:
    """Speed of decoding after a prompt, alone and several together, and of a prompt."""
    held = {name: int(np.prod(info.shape)) for name, info in gguf.tensors.items() if len(info.shape) > 1}
    n_params = sum(n for name, n in held.items() if name not in ("token_embd.weight", "output.weight"))
    n_vocab = backend.limits.n_vocab
    n_read = backend.memory()["weights"]
    if "output.weight" in held:  # then the table of embeddings is not multiplied with
        n_read -= gguf.tensors["token_embd.weight"].n_bytes

    def decode() -> None:
        for i in range(N_DECODED):
            backend.choose(make_rows(tokens[i : i + 1], N_PROMPT + i), n_vocab)

    def decode_together() -> None:
        ones = np.arange(N_TOGETHER, dtype=np.int32)
        for i in range(N_DECODED // 4):
            positions = np.full(N_TOGETHER, i, np.int32)
            backend.choose(Batch(tokens[:N_TOGETHER], positions, ones, ones), n_vocab)

    def prompt() -> None:
        backend.choose(make_rows(tokens[:N_PROMPT], 0, wanted=False), n_vocab)

    prompt_s, decode_s = time_best(prompt) / N_PROMPT, time_best(decode, 2) / N_DECODED
    together_s = time_best(decode_together, 2) / (N_DECODED // 4)
    moved, rate = n_read / decode_s, 2 * n_params / prompt_s
    n_launches = len(backend.launches(1, 1, n_vocab))
    return [
        ("  decode", f"{1 / decode_s:.0f} tok/s, {moved / 1e9:.0f} GB/s", f"{moved / roofs.copy:.0%} of copying"),
        (
            "  of it launches, and reading the weights",
            f"{n_launches} x {1e6 * roofs.launch_s:.2f} us, {1e6 * n_read / roofs.copy:.0f} us",
            f"of {1e6 * decode_s:.0f} us",
        ),
        (
            f"  decode, {N_TOGETHER} together",
            f"{N_TOGETHER / together_s:.0f} tok/s",
            f"{decode_s / together_s:.0%} alone",
        ),
        ("  prompt", f"{1 / prompt_s:.0f} tok/s, {rate / 1e12:.1f} Tops/s", f"{rate / roofs.tile:.0%} of mma"),
    ]


def write_made_up(path: Path, n_layers: int = 28, n_embd: int = 1536, n_ff: int = 8960, n_vocab: int = 151936) -> Path:
    """A Qwen2 of random weights in the types of a Q4_K_M file; without arguments in the shape of the 1.5B."""
    n_heads, n_kv_heads = n_embd // 128, max(1, n_embd // 768)
    shapes = {
        "attn_q": (n_embd, n_embd), "attn_k": (128 * n_kv_heads, n_embd), "attn_v": (128 * n_kv_heads, n_embd),
        "attn_output": (n_embd, n_embd), "ffn_gate": (n_ff, n_embd), "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }  # fmt: skip
    ones = np.ones(n_embd, np.float32)
    q4, q6, f32 = GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.F32
    tensors = {
        "token_embd.weight": (q4, random_blocks(q4, n_vocab, n_embd, 1, 0.02)),
        "output.weight": (q6, random_blocks(q6, n_vocab, n_embd, 2, 0.00003)),
        "output_norm.weight": (f32, ones),
    }
    for i in range(n_layers):
        for j, (name, shape) in enumerate(shapes.items()):
            kind = q6 if name in ("attn_v", "ffn_down") and i % 2 == 0 else q4
            size = 0.00003 if kind == q6 else 0.0001
            tensors[f"blk.{i}.{name}.weight"] = (kind, random_blocks(kind, *shape, 10 * i + j, size))
        for name in ("attn_q", "attn_k", "attn_v"):
            tensors[f"blk.{i}.{name}.bias"] = (f32, np.zeros(shapes[name][0], np.float32))
        tensors |= {f"blk.{i}.{name}.weight": (f32, ones) for name in ("attn_norm", "ffn_norm")}
    metadata = {
        "general.architecture": "qwen2", "qwen2.block_count": n_layers, "qwen2.context_length": 4096,
        "qwen2.embedding_length": n_embd, "qwen2.feed_forward_length": n_ff, "qwen2.attention.head_count": n_heads,
        "qwen2.attention.head_count_kv": n_kv_heads, "qwen2.rope.freq_base": 1e6,
        "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
    }  # fmt: skip
    return write_gguf(path, metadata, tensors)


def check_model(path: Path, number: int, roofs: Roofs | None, table: Table) -> None:
    """One model."""
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(1024, N_TOGETHER, N_PROMPT, N_COMPARED, program.n_vocab)
        tokens = np.random.default_rng(1).integers(0, program.n_vocab, 1024, dtype=np.int32)
        started = time.perf_counter()
        card = CudaBackend(program, gguf, limits, NvidiaCard(number), lambda progress: None)
        loaded_s = time.perf_counter() - started
        try:
            table.add(
                (path.name, f"{card.memory()['weights'] / 1e6:.0f} MB of weights, loaded in {loaded_s:.1f} s", "")
            )
            few = tokens[:N_COMPARED]
            if roofs is not None:
                with table.part("  speed"):
                    table.add(*measure(card, gguf, tokens, roofs))
            with table.part("  rows over chunks, slots and copies"):
                table.add(*compare_rows(card, few))
            with table.part("  layers in two parts"):
                table.add(*compare_parted(card, program, gguf, limits, number, few))
            with table.part("  against the CPU backend"):
                table.add(*compare_with_cpu(card, program, gguf, limits, few))
        finally:
            card.close()


def check_models(folder: Path, number: int, roofs: Roofs | None, table: Table) -> None:
    """The models in a folder, or the made-up one, while there is time."""
    with tempfile.TemporaryDirectory(prefix="phobos-check-") as scratch:
        paths = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
        for path in paths or [None]:
            name = "a made-up model" if path is None else path.name
            if time.perf_counter() - STARTED_S > LIMIT_S - MODEL_S:
                table.add((name, "left out: no time", "cut"))
                continue
            with table.part(name):
                made_up = Path(scratch) / "made-up-1.5B.gguf"
                check_model(path or write_made_up(made_up), number, roofs, table)


def main(arguments: Sequence[str]) -> int:
    """Print the table; 0 where nothing failed."""
    folder = Path(arguments[0]) if arguments else ROOT / "models"
    number = int(arguments[1]) if len(arguments) > 1 else 0
    missing = missing_part()
    if missing is not None:
        print(f"there is nothing to check: {missing}", file=sys.stderr)
        return 2
    table = Table()
    table.add(*describe_machine())
    roofs: Roofs | None = None
    with table.part("the card"):
        card = NvidiaCard(number)
        capability = "compute capability {}.{}".format(*card.target)
        table.add((card.name, capability, f"{card.n_processors} multiprocessors"))
        try:
            with table.part("what the card can do"):
                roofs = measure_roofs(card)
                table.add(
                    ("copy, both ways counted", f"{roofs.copy / 1e9:.0f} GB/s", ""),
                    ("dp4a", f"{roofs.dot / 1e12:.1f} Tops/s", ""),
                    ("mma, 8-bit", f"{roofs.tile / 1e12:.1f} Tops/s", ""),
                    ("a launch inside a recorded pass", f"{1e6 * roofs.launch_s:.2f} us", ""),
                )
            with table.part("kernels compiled and loaded"):
                table.add(*compile_all(card))
        finally:
            card.close()
        table.add(run_tests(number))
        check_models(folder, number, roofs, table)
    table.add((f"{time.perf_counter() - STARTED_S:.0f} s", "", "FAILED" if table.failed else "ok"))
    return int(table.failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
