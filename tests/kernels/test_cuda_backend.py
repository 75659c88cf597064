"""The whole CUDA backend on tiny models: compiled code, run by `ptx_machine.py`, against the CPU backend, bit-equal to
itself over batches, chunks, slots and reused prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[dev]'")

from models.family_models import FAMILIES, write_quantized_twin
from models.tiny_models import PACKED_TYPES, RECIPES, make_tokens, write_tiny_model
from one_op import join_batches, make_batch, open_on_ptx
from phobos.archs import build_program
from phobos.errors import PhobosError
from phobos.gguf.reader import GGUF, open_gguf
from phobos.kernels.backend import Backend, BackendLimits
from phobos.kernels.cpu.backend import CpuBackend
from phobos.kernels.cuda.backend import CudaBackend, class_of, classes_up_to
from phobos.kernels.cuda.ptx import find_kernel
from phobos.program.steps import Program
from ptx.card import PtxCard

pytestmark = pytest.mark.timeout(300)  # the first to want a kernel compiles it
N = 20


@contextmanager
def opened(path: Path, kind: str, cache: str = "f16") -> Iterator[Backend]:
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(64, 3, 32, 32, program.n_vocab, cache_k=cache, cache_v=cache)
        backend = make_backend(kind, program, gguf, limits)
        try:
            yield backend
        finally:
            backend.close()


def make_backend(kind: str, program: Program, gguf: GGUF, limits: BackendLimits) -> Backend:
    if kind == "cuda":
        return open_on_ptx(program, gguf, limits)
    return CpuBackend(program, gguf, limits, 2, lambda progress: None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer whose matrices have seven packed types."""
    recipe = replace(RECIPES["llama"], n_layers=1, name="small")
    return write_tiny_model(recipe, tmp_path_factory.mktemp("cuda") / "tiny.gguf", PACKED_TYPES[:8])


@pytest.fixture(scope="module", params=["f16", "q8_0"])
def cache(request: pytest.FixtureRequest) -> str:
    """What the cache holds keys and values as."""
    return str(request.param)


@pytest.fixture(scope="module")
def plain(path: Path, cache: str) -> np.ndarray:
    """Logits of `N` rows computed at once."""
    with opened(path, "cuda", cache) as backend:
        return backend.run(make_batch(make_tokens(N))).copy()


def test_logits_are_those_of_the_cpu(path: Path, cache: str, plain: np.ndarray) -> None:
    """Both quantize activations, and keys and values, alike, so that only float32 rounding is between them."""
    with opened(path, "cpu", cache) as backend:
        want = backend.run(make_batch(make_tokens(N)))
        assert np.abs(plain - want).max() < 1e-4 * np.abs(want).max()


def test_rows_have_the_same_bits_however_they_come(path: Path, cache: str, plain: np.ndarray) -> None:
    """Chunks of several sizes, beside another slot's rows, from a copied and from a restored prefix."""
    tokens = make_tokens(N)
    with opened(path, "cuda", cache) as backend:
        found = [
            backend.run(make_batch(tokens[first:last], first)).copy() for first, last in ((0, 9), (9, 10), (10, 20))
        ]
        assert np.array_equal(np.concatenate(found), plain)
        layer = backend._program.layers[0]  # type: ignore[attr-defined]
        values = 32 * layer.n_kv_heads * (layer.k_dim + layer.v_dim)  # of a tile of positions
        assert backend.slot_bytes(N) == values * {"f16": 2, "q8_0": 1.0625}[cache]
        other = make_batch(tokens[::-1][:5], 0, 1)
        backend.run(other)
        backend.copy_rows(0, 2, 18)
        mixed = backend.run(join_batches(make_batch(tokens[5:6], 5, 1), make_batch(tokens[18:], 18, 2)))
        assert np.array_equal(mixed[1:], plain[18:])
        state = backend.save(0, 13)
        backend.release(0)
        backend.run(make_batch(tokens[::-1], 0, 0))
        backend.restore(0, 12, state, 13)
        backend.run(make_batch(tokens[12:13], 12, 0))
        assert np.array_equal(backend.run(make_batch(tokens[13:], 13, 0)), plain[13:])
        for wrong in (state[:-1], state + b"\0"):
            with pytest.raises(ValueError, match="bytes"):
                backend.restore(0, 13, wrong, 13)


def test_what_a_backend_says(path: Path) -> None:
    stages = []
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(64, 3, 32, 8, program.n_vocab)
        card = PtxCard()
        backend = CudaBackend(program, gguf, limits, card, stages.append)
    assert backend.describe().kind == "cuda"
    fractions = [stage.fraction for stage in stages]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    held = backend.memory()
    assert sum(held.values()) == pytest.approx(card.memory.n_held, rel=0.02), "what is said is what is taken"
    for tokens, first, slot in (([0] * 33, 0, 0), ([300], 0, 0), ([-1], 0, 0), ([0], 64, 0), ([0], 0, 3)):
        with pytest.raises(ValueError, match="batch"):
            backend.run(make_batch(tokens, first, slot))
    for launch in (launch for n in (1, 32) for launch in backend.launches(n, 8)):
        declared = find_kernel(launch.kernel)
        assert (launch.n_threads, len(launch.arguments)) == (declared.n_threads, len(declared.parameters)), launch
        kinds = tuple(float if isinstance(a, float) else int for a in launch.arguments)
        assert kinds == declared.parameters, launch
    backend.close()


def test_a_model_that_does_not_fit_is_refused(path: Path) -> None:
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(1 << 20, 64, 32, 8, program.n_vocab)
        with pytest.raises(PhobosError, match=r"needs .* GB of PTX machine, which has .* free of .*: use a smaller"):
            CudaBackend(program, gguf, limits, PtxCard(), lambda progress: None)


def test_shape_classes() -> None:
    assert [class_of(n, 516) for n in (0, 1, 2, 3, 9, 512, 513, 516)] == [0, 1, 2, 4, 16, 512, 516, 516]
    assert classes_up_to(5) == [1, 2, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_every_family(tmp_path: Path, name: str) -> None:
    """Quantized twins of every family, against the CPU backend, and rows alone against rows together."""
    file = write_quantized_twin(name, tmp_path / "m.gguf")
    tokens = make_tokens(12)
    with opened(file, "cpu") as backend:
        want = backend.run(make_batch(tokens)).copy()
    with opened(file, "cuda") as backend:
        got = backend.run(make_batch(tokens)).copy()
        assert np.linalg.norm(got - want) < 0.03 * np.linalg.norm(want)
        single = [backend.run(make_batch(tokens[i : i + 1], i, 1))[0].copy() for i in range(12)]
    assert np.array_equal(np.stack(single), got)
