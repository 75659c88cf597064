"""`open_backend`: context and slots from settings and free memory, what it says of a model, and its refusals."""

from __future__ import annotations

import errno
import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import phobos.kernels.placing.opening
from models.gguf_writer import write_gguf
from models.tiny_models import N_CTX, RECIPES, make_metadata, make_tokens, make_weights, write_tiny_model
from one_op import make_batch
from phobos.archs import build_program
from phobos.errors import PhobosError, UsageError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.host.machine import Memory
from phobos.kernels.cpu import backend as cpu_backend
from phobos.kernels.cpu.weights import describe_program
from phobos.kernels.placing.capacity import plan_limits, state_bytes
from phobos.kernels.placing.opening import open_backend
from phobos.program.steps import Program, StateLayer
from phobos.settings import EngineSettings

ROW_BYTES = 2 * 2 * 2 * (64 + 64)  # of the tiny model "llama-untied": layers, halves, heads


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(RECIPES["llama-untied"], tmp_path_factory.mktemp("open") / "tiny.gguf", (GGMLType.Q4_K,))


@pytest.fixture(scope="module")
def program(path: Path) -> Program:
    with open_gguf(path) as gguf:
        return build_program(gguf)


def limits_of(program: Program, free: int | None, **settings: int) -> tuple[int, int]:
    limits = plan_limits(program, EngineSettings(Path("m.gguf"), **settings), free)  # type: ignore[arg-type]
    return limits.n_ctx, limits.n_slots


def test_defaults_follow_the_free_memory(program: Program) -> None:
    assert limits_of(program, None) == (N_CTX, 4)
    assert limits_of(program, 1 << 40) == (N_CTX, 4)
    assert limits_of(program, 2 * 2 * N_CTX * ROW_BYTES) == (N_CTX, 2), "half of what is free is for the cache"
    assert limits_of(program, 2 * N_CTX * ROW_BYTES) == (N_CTX, 1)
    assert limits_of(program, 2 * 700 * ROW_BYTES) == (512, 1), "a shorter context, in steps of 256"
    assert limits_of(program, 0) == (256, 1), "loading fails later, where it is known how"
    longer = replace(program, n_ctx_train=131_072)
    assert limits_of(longer, 1 << 40) == (131_072, 4), "what is not used costs nothing"
    settings = EngineSettings(Path("m.gguf"))
    assert plan_limits(longer, settings, 1 << 40, grows=False).n_ctx == 4096
    assert plan_limits(program, settings, 2 * 2 * N_CTX * ROW_BYTES, grows=False).n_slots == 2
    shared = plan_limits(longer, settings, 2 * 10_000 * ROW_BYTES)
    assert (shared.n_ctx, shared.n_slots) == (9984, 1)
    shared = plan_limits(replace(program, n_ctx_train=6000), settings, 2 * 10_000 * ROW_BYTES)
    assert (shared.n_ctx, shared.n_slots, shared.cache_bytes) == (6000, 4, 10_000 * ROW_BYTES)


def test_states_take_memory_whatever_the_context(program: Program) -> None:
    """Of one slot: its own and three kept ones; and models with nothing but states have a context too."""
    fixed = 4 * 4 * 100_000
    hybrid = replace(program, states=(StateLayer(0, 40_000), StateLayer(1, 60_000)))
    assert state_bytes(hybrid) == fixed
    assert limits_of(hybrid, 2 * 2 * (N_CTX * ROW_BYTES + fixed)) == (N_CTX, 2)
    assert limits_of(hybrid, 2 * (N_CTX * ROW_BYTES + fixed) - 2) == (N_CTX - 256, 1)
    assert limits_of(replace(hybrid, layers=()), 1 << 40) == (N_CTX, 4)
    with pytest.raises(UsageError, match="use a smaller --ctx-size"):
        limits_of(hybrid, fixed, n_slots=2, n_ctx=1)


def test_settings_win(program: Program) -> None:
    assert limits_of(program, 1 << 40, n_ctx=N_CTX, n_slots=9) == (N_CTX, 9)
    assert limits_of(program, 1 << 40, n_ctx=1) == (1, 4)
    assert limits_of(program, 2 * 1024 * ROW_BYTES, n_slots=2) == (1024, 2)
    limits = plan_limits(program, EngineSettings(Path("m.gguf"), n_slots=3, chunk_rows=100), None)
    assert limits.max_rows == 103, "a chunk of a prompt beside a row of every slot"
    assert limits.max_outputs > 3


def test_impossible_settings_are_refused(program: Program) -> None:
    with pytest.raises(UsageError, match=f"trained for {N_CTX} tokens, use --ctx-size {N_CTX} or less"):
        limits_of(program, None, n_ctx=N_CTX + 1)
    with pytest.raises(UsageError, match="--ctx-size 0"):
        limits_of(program, None, n_ctx=0)
    with pytest.raises(UsageError, match="--parallel must be at least 1"):
        limits_of(program, None, n_slots=0)
    with pytest.raises(UsageError, match=r"a context of 1000 tokens takes 1.02 MB and 1.00 MB of memory are free"):
        limits_of(program, 1_000_000, n_ctx=1000, n_slots=8)
    with pytest.raises(UsageError, match=r"--cache-memory 1.00 MB is less than one context of 1000 tokens takes"):
        limits_of(program, None, n_ctx=1000, cache_bytes=1_000_000)
    with pytest.raises(UsageError, match=r"--cache-memory 3.00 MB is too much, 2.00 MB of memory are free"):
        limits_of(program, 2_000_000, n_ctx=1000, cache_bytes=3_000_000)


def test_slots_share_what_not_all_of_them_can_fill(program: Program) -> None:
    def bound(free: int | None, **settings: int) -> int | None:
        return plan_limits(program, EngineSettings(Path("m.gguf"), **settings), free).cache_bytes  # type: ignore[arg-type]

    whole = 1000 * ROW_BYTES
    assert bound(None, n_ctx=1000, n_slots=8) is None
    assert bound(100 * whole, n_ctx=1000, n_slots=8) is None, "all fit"
    assert bound(6 * whole, n_ctx=1000, n_slots=8) == 3 * whole, "half of what is free"
    assert bound(whole + 100, n_ctx=1000, n_slots=8) == whole, "one always fits whole"
    assert bound(100 * whole, n_ctx=1000, n_slots=8, cache_bytes=2 * whole) == 2 * whole
    assert bound(100 * whole, n_ctx=1000, n_slots=2, cache_bytes=5 * whole) is None
    assert limits_of(program, None, n_ctx=1000, cache_bytes=2 * whole + 1) == (1000, 2)


@pytest.mark.parametrize("kind", ["cpu", "reference"])
def test_what_is_said_of_a_model(path: Path, kind: str) -> None:
    stages = []
    with open_gguf(path) as gguf:
        settings = EngineSettings(path, backend=kind, n_ctx=300, n_slots=2, n_threads=1)
        backend, info = open_backend(build_program(gguf), gguf, settings, stages.append)
    assert (info.name, info.architecture, info.quantization) == ("tiny llama-untied", "llama", "Q4_K")
    assert info.n_params == sum(values.size for values in make_weights(RECIPES["llama-untied"]).values())
    assert (info.n_ctx, info.n_layers, info.n_vocab, info.layer_kinds) == (300, 2, 300, ("full", "full"))
    value_bytes = 2 if kind == "cpu" else 4
    assert info.cache_bytes >= 2 * 300 * ROW_BYTES // 2 * value_bytes
    assert info.weights_bytes > 4.5 / 8 * info.n_params if kind == "cpu" else info.weights_bytes == 4 * info.n_params
    assert (backend.limits.n_ctx, backend.limits.n_slots) == (300, 2)
    assert backend.describe().kind == "cpu"
    fractions = [progress.fraction for progress in stages]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert backend.run(make_batch(make_tokens(5))).shape == (5, 300)
    backend.close()
    backend.close()


def test_gemma3_tells_its_windows_and_file_type(tmp_path: Path) -> None:
    recipe = RECIPES["gemma3"]
    metadata = {**make_metadata(recipe), "general.file_type": 15}
    del metadata["general.name"]
    tensors = {name: (GGMLType.F32, values) for name, values in make_weights(recipe).items()}
    with open_gguf(write_gguf(tmp_path / "some-name.gguf", metadata, tensors)) as gguf:
        backend, info = open_backend(
            build_program(gguf), gguf, EngineSettings(tmp_path, backend="reference", n_ctx=8), lambda progress: None
        )
    backend.close()
    assert (info.name, info.quantization) == ("some-name", "Q4_K_M")
    assert info.layer_kinds == ("window",) * 5 + ("full", "window")


def test_widened_tensors_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiny_model(RECIPES["llama"], tmp_path / "tiny.gguf", (GGMLType.F64,))
    caplog.set_level(logging.WARNING, "phobos.load")
    logging.getLogger("phobos").propagate = True
    with open_gguf(path) as gguf:
        backend, _ = open_backend(build_program(gguf), gguf, EngineSettings(path, n_ctx=64), lambda progress: None)
    backend.close()
    (message,) = {record.getMessage() for record in caplog.records if record.name == "phobos.load"}
    assert message.startswith("no packed form for F64: held as F16")
    assert "token_embd.weight" in message
    assert message.endswith("and 7 more")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"backend": "abacus"}, "no backend 'abacus' here: use --backend cpu or reference"),
        ({"cache_type_v": "q4_0"}, "--cache-type-v q4_0 is not supported: use f16 or q8_0"),
        (
            {"cache_type_k": "q8_0", "backend": "reference"},
            "--backend reference caches floats: leave out --cache-type-k",
        ),
        ({"n_threads": 0}, "--threads must be at least 1"),
    ],
)
def test_settings_nobody_can_have(path: Path, changes: dict[str, object], sentence: str) -> None:
    with open_gguf(path) as gguf, pytest.raises(UsageError, match=sentence):
        open_backend(build_program(gguf), gguf, replace(EngineSettings(path), **changes), lambda progress: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "there is not enough memory for this model with a context of 64 tokens and 4 slots"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "there is not enough memory for this model"),
        (OSError(errno.ENOSPC, "No space left", "k.o"), "could not be loaded, the system says: No space left: k.o"),
    ],
    ids=str,
)
def test_what_the_system_refuses_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(cpu_backend, "load_kernels", refuse)
    with open_gguf(path) as gguf, pytest.raises(PhobosError, match=re.escape(sentence)):
        open_backend(build_program(gguf), gguf, EngineSettings(path, n_ctx=64, n_slots=4), lambda progress: None)


def test_the_machine_is_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_gguf(path) as gguf:
        packed = sum(weight.n_bytes for weight in describe_program(gguf, build_program(gguf)).values())
        free = packed + 2 * N_CTX * ROW_BYTES
        monkeypatch.setattr(phobos.kernels.placing.opening, "read_memory", lambda: Memory(1 << 30, free))
        backend, _ = open_backend(build_program(gguf), gguf, EngineSettings(path), lambda progress: None)
    backend.close()
    assert (backend.limits.n_ctx, backend.limits.n_slots) == (N_CTX, 1)


def test_released_and_copied_slots_of_the_reference(path: Path) -> None:
    """The reference keeps the slot calls of the protocol too."""
    tokens = make_tokens(20)
    with open_gguf(path) as gguf:
        settings = EngineSettings(path, backend="reference", n_ctx=64, n_slots=3)
        backend, _ = open_backend(build_program(gguf), gguf, settings, lambda progress: None)
    plain = backend.run(make_batch(tokens)).copy()
    backend.copy_rows(0, 1, 12)
    assert np.allclose(backend.run(make_batch(tokens[12:], 12, 1)), plain[12:], rtol=1e-4, atol=1e-4)
    state = backend.save(0, 7)
    backend.release(0)
    backend.restore(2, 7, state, 7)
    assert np.allclose(backend.run(make_batch(tokens[7:], 7, 2)), plain[7:], rtol=1e-4, atol=1e-4)
    assert not np.allclose(backend.run(make_batch(tokens[7:], 7, 0)), plain[7:], rtol=1e-2, atol=1e-2)
    with pytest.raises(ValueError, match="bytes"):
        backend.restore(0, 8, state, 8)
