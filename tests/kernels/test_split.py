"""Programs cut into stages, and models whose stages lie on several backends: the same bits as whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backend_runs import assert_same, run_fork, run_pieces
from models.family_models import FAMILIES, write_quantized_twin
from models.tiny_models import PACKED_TYPES, RECIPES, make_tokens, write_tiny_model
from one_op import make_batch
from phobos.archs import build_program
from phobos.gguf.reader import GGUF, open_gguf
from phobos.kernels.backend import BackendLimits
from phobos.kernels.cpu.backend import CpuBackend
from phobos.kernels.placing.placement import place_most, place_pieces
from phobos.kernels.placing.split import SplitBackend, Stage, StageBackend
from phobos.program.stages import Border, count_layers, cut_program, find_borders
from phobos.program.steps import Program

Opener = Callable[[Program, GGUF, BackendLimits], StageBackend]


def open_cpu(program: Program, gguf: GGUF, limits: BackendLimits) -> StageBackend:
    return CpuBackend(program, gguf, limits, 2, lambda progress: None)


def limits_of(program: Program) -> BackendLimits:
    return BackendLimits(256, 3, 96, 96, program.n_vocab)


def open_split(gguf: GGUF, program: Program, borders: Sequence[Border], openers: Sequence[Opener]) -> SplitBackend:
    ends = [0, *(border.layer for border in borders), count_layers(program)]
    stages = []
    for i, part in enumerate(cut_program(program, borders)):
        backend = openers[i % len(openers)](part, gguf, limits_of(program))
        stages.append(Stage(backend, f"device {i}", ends[i], ends[i + 1]))
    return SplitBackend(stages)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers of mixed types."""
    recipe = replace(RECIPES["llama"], n_layers=3, name="three")
    return write_tiny_model(recipe, tmp_path_factory.mktemp("split") / "tiny.gguf", PACKED_TYPES[:8])


def test_stages_on_the_processor(path: Path) -> None:
    """Every way to cut, bit for bit; sizes add up to the whole."""
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        whole = open_cpu(program, gguf, limits_of(program))
        want, sizes, n_rows_bytes = run_pieces(whole), whole.memory(), whole.slot_bytes(9)
        forked = run_fork(whole)
        whole.close()
        borders = find_borders(program)
        assert [border.layer for border in borders] == [1, 2] and count_layers(program) == 3
        for chosen in ((borders[0],), (borders[1],), borders):
            parts = cut_program(program, chosen)
            assert [p.logits is not None for p in parts] == [False] * len(chosen) + [True]
            assert [b.name for p in parts for b in p.inputs] == ["x"] * len(chosen)
            split = open_split(gguf, program, chosen, [open_cpu])
            assert_same(run_pieces(split), want)
            assert np.array_equal(run_fork(split), forked)
            assert split.limits.can_cut and split.limits.fork_block and split.slot_bytes(9) == n_rows_bytes
            assert split.memory()["weights"] >= sizes["weights"]
            assert split.bytes_read is not None and split.bytes_read > 0
            assert split.describe().features.startswith(f"device 0: layers 0 to {chosen[0].layer - 1} (")
            split.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_every_family(tmp_path: Path, name: str) -> None:
    """At each of its borders, and at all at once."""
    file = write_quantized_twin(name, tmp_path / "m.gguf")
    with open_gguf(file) as gguf:
        program = build_program(gguf)
        whole = open_cpu(program, gguf, limits_of(program))
        tokens = make_tokens(12)
        want = [whole.run(make_batch(tokens[a:b], a)).copy() for a, b in ((0, 7), (7, 8), (8, 12))]
        whole.close()
        borders = find_borders(program)
        for chosen in (*((border,) for border in borders), borders):
            split = open_split(gguf, program, chosen, [open_cpu])
            assert_same([split.run(make_batch(tokens[a:b], a)).copy() for a, b in ((0, 7), (7, 8), (8, 12))], want)
            split.close()


def test_where_pieces_lie() -> None:
    assert place_pieces([10, 10, 10, 40], [100]) == (0,)
    assert place_pieces([10, 10, 10, 40], [69]) is None
    assert place_pieces([10] * 6, [40, 20]) == (0, 4)
    assert place_pieces([10, 10, 10, 40], [100, 100]) == (0, 3)
    assert place_pieces([10, 10, 10, 40], [30, 39]) is None
    assert place_pieces([10] * 9, [90, 90, 90]) == (0, 3, 6)
    assert place_pieces([10], [90, 90]) is None
    assert place_pieces([10, 10], [90, 0]) is None
    assert place_most([10, 10, 10, 40], [59]) == (2,)
    assert place_most([10, 10, 10, 40], [39]) is None
    assert place_most([10] * 6, [20, 20]) == (2, 4)
