"""`plan` against what loaded models take: part by part with tiny models, and the whole peak with real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from golden.values import find_model
from models.family_models import FAMILIES, write_family_model
from models.tiny_models import PACKED_TYPES, RECIPES, write_tiny_model
from phobos.archs import build_program
from phobos.commands.inspect import summary
from phobos.errors import UsageError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.inspection import inspect_file
from phobos.kernels.placing.opening import open_backend
from phobos.plan import make_plan
from phobos.settings import EngineSettings

MODELS = (
    "SmolLM2-135M-Instruct-Q4_1.gguf",
    "gemma-3-270m-Q4_K_M.gguf",
    "qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf",
    "qwen2.5-coder-1.5b-instruct-Q4_K_M.gguf",
)


@pytest.mark.parametrize("recipe", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize(
    ("kinds", "cache"),
    [((GGMLType.F32,), "f16"), (PACKED_TYPES, "f16"), ((GGMLType.Q4_K,), "q8_0")],
    ids=["f32", "packed", "q8_0"],
)
def test_parts_are_what_the_backend_takes(tmp_path: Path, recipe: str, kinds: tuple[GGMLType, ...], cache: str) -> None:
    path = write_tiny_model(RECIPES[recipe], tmp_path / "m.gguf", kinds)
    settings = EngineSettings(path, n_ctx=1024, n_slots=2, n_threads=2, cache_type_k=cache, cache_type_v=cache)
    planned = {part.name: part.n_bytes for part in make_plan(settings).parts}
    with open_gguf(path) as gguf:
        backend, info = open_backend(build_program(gguf), gguf, settings, lambda progress: None)
        try:
            held = {**backend.memory(), "cache": info.cache_bytes}
        finally:
            backend.close()
    for name, n_bytes in held.items():
        assert planned[name] == pytest.approx(n_bytes, rel=0.05, abs=200_000), name


def test_conversations_share_what_the_cache_may_take(tmp_path: Path) -> None:
    path = write_tiny_model(RECIPES["llama"], tmp_path / "m.gguf")
    settings = EngineSettings(path, n_ctx=1024, n_slots=8, n_threads=2, archive_bytes=7000)
    whole = make_plan(settings)
    bound = 2 * 1024 * whole.cache_bytes_per_token
    shared = make_plan(replace(settings, cache_bytes=bound))
    assert whole.total_bytes - shared.total_bytes == 6 * 1024 * whole.cache_bytes_per_token
    (cache,) = [part for part in shared.parts if part.name == "cache"]
    assert cache.n_bytes == bound and cache.why.startswith("up to 2048 tokens of 8 conversations together")
    assert (shared.max_ctx, shared.archive_bytes) == (1536, 7000)
    assert make_plan(replace(settings, prefix_cache=False)).archive_bytes == 0
    with pytest.raises(UsageError, match=r"--cache-memory 1\.02 kB is less than one context of 1024 tokens takes"):
        make_plan(replace(settings, cache_bytes=1024))


def test_a_draft_model_is_a_part_of_the_plan(tmp_path: Path) -> None:
    path = write_tiny_model(RECIPES["llama"], tmp_path / "m.gguf")
    settings = EngineSettings(path, n_ctx=1024, n_slots=2, n_threads=2)
    alone, both = make_plan(settings), make_plan(replace(settings, draft_path=path))
    parts = {part.name: part for part in both.parts}
    own = sum(part.n_bytes for part in alone.parts if part.name != "program")
    assert parts["draft model"].n_bytes == own and "m.gguf" in parts["draft model"].why
    assert both.total_bytes == alone.total_bytes + own


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("n_ctx", [512, 2048, 4096])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_the_measured_one(name: str, n_ctx: int) -> None:
    path = find_model(name)
    if path is None:
        pytest.skip(f"{name} is not here: run make test-models")
    if not Path("/proc/self/smaps").exists():
        pytest.skip("this system does not tell the peak")
    plan = make_plan(EngineSettings(path, n_ctx=n_ctx, n_slots=1))
    command = [sys.executable, str(Path(__file__).with_name("measure_peak.py")), str(path), str(n_ctx)]
    for _ in range(2):  # the first run may compile kernels, which is no part of the plan
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True, timeout=600)
    assert plan.peak_bytes == pytest.approx(int(done.stdout), rel=0.05)


@pytest.mark.parametrize("name", ["qwen35", "mamba2"])
def test_states_are_planned_beside_the_cache(tmp_path: Path, name: str) -> None:
    """Four times what the backend holds: its own, and what may be kept to go on from. Mamba 2 has nothing else."""
    path = write_family_model(FAMILIES[name], tmp_path / "m.gguf")
    settings = EngineSettings(path, n_ctx=256, n_slots=3, n_threads=2)
    planned = {part.name: part.n_bytes for part in make_plan(settings).parts}
    with open_gguf(path) as gguf:
        program = build_program(gguf)
    assert planned["states"] == 3 * 4 * sum(4 * state.n_values for state in program.states)
    assert ("cache" in planned) == (name == "qwen35")
    facts = dict(summary(inspect_file(path)))
    assert facts["architecture"].startswith(f"{name}: {FAMILIES[name].n_layers} layers, width 256")
    assert ("2 for keys" in facts["architecture"]) == (name == "qwen35")
