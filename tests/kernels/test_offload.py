"""Models parted between cards, or cards and the processor: which layers go where, and that the parts compute the same.

Cards are played by `ptx_card.py`; each test says how much memory they have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[dev]'")

from backend_runs import assert_same, run_pieces
from models.family_models import FAMILIES, write_family_model
from models.tiny_models import RECIPES, write_tiny_model
from one_op import make_batch
from phobos.archs import build_program
from phobos.errors import PhobosError, UsageError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import GGUF, open_gguf
from phobos.host.machine import Memory
from phobos.kernels.backend import Backend
from phobos.kernels.cpu.backend import CpuBackend
from phobos.kernels.cuda.backend import SPARE_BYTES, CudaBackend
from phobos.kernels.placing import offload
from phobos.kernels.placing.offload import Pieces, choose_places, open_on_cards
from phobos.kernels.placing.split import SplitBackend
from phobos.settings import EngineSettings
from ptx.card import PtxCard

pytestmark = pytest.mark.timeout(300)  # the first to want a kernel compiles it
SETTINGS = EngineSettings(Path("m.gguf"), device="cuda", n_ctx=64, n_slots=3, chunk_rows=16, n_threads=2)


class CardOf(PtxCard):
    """A card with so much room for models."""

    def __init__(self, room: int, name: str = "first") -> None:
        super().__init__(16 << 20)
        self.name, self.room, self.is_closed = name, room, False

    def memory_info(self) -> tuple[int, int]:
        return self.room + SPARE_BYTES, 1 << 30

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUF]:
    """Three layers of one type."""
    recipe = replace(RECIPES["llama"], n_layers=3, name="three")
    with open_gguf(write_tiny_model(recipe, tmp_path_factory.mktemp("offload") / "t.gguf", (GGMLType.Q8_0,))) as gguf:
        yield gguf


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "phobos.load")
    logging.getLogger("phobos").propagate = True
    return lambda: [record.getMessage() for record in caplog.records if record.name == "phobos.load"]


def open_parts(gguf: GGUF, rooms: Sequence[int], settings: EngineSettings = SETTINGS) -> Backend | None:
    cards = [CardOf(room, name) for room, name in zip(rooms, ("first", "second"), strict=False)]
    return open_on_cards(cards, build_program(gguf), gguf, settings, lambda progress: None)


def need(gguf: GGUF, n_last: int) -> int:
    """Room that the last layers take beside a whole program's buffers."""
    pieces, settings = Pieces(gguf, build_program(gguf)), replace(SETTINGS, gpu_layers=n_last)
    low, high = 0, 1 << 30
    while high - low > 1:
        middle = (low + high) // 2
        fits = choose_places(pieces, [middle], settings)[1] is not None
        low, high = (low, middle) if fits else (middle, high)
    return high


def test_layers_for_the_card(gguf: GGUF, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those asked for, or as many as fit; the result is close to the processor's, as all of it on a card would be."""
    monkeypatch.setattr(offload, "read_memory", lambda: Memory(1 << 34, 1 << 34))
    program = build_program(gguf)
    whole = open_parts(gguf, [1 << 30])
    assert isinstance(whole, CudaBackend)
    cpu = CpuBackend(program, gguf, whole.limits, 2, lambda progress: None)
    want = cpu.run(make_batch(range(9))).copy()
    for room, wanted, n_last in ((1 << 30, 2, 2), (need(gguf, 1) + 100, None, 1)):
        backend = open_parts(gguf, [room], replace(SETTINGS, gpu_layers=wanted))
        assert isinstance(backend, SplitBackend)
        assert said()[-2:] == [
            f"layers 0 to {2 - n_last} of 3 lie on the CPU",
            f"layers {3 - n_last} to 2 of 3 lie on first",
        ]
        got = backend.run(make_batch(range(9)))
        assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
        assert np.array_equal(backend.choose(make_batch(range(9)), 40), got[:, :40].argmax(axis=1))
        assert backend.describe().kind == "cuda" and "cpu: layers 0 to" in backend.describe().features
        backend.close()
    assert isinstance(open_parts(gguf, [1 << 30], replace(SETTINGS, gpu_layers=99)), CudaBackend)


def test_two_cards_compute_what_one_does(gguf: GGUF, said: Callable[[], list[str]]) -> None:
    """Bit for bit; layers go by memory."""
    one = open_parts(gguf, [1 << 30])
    assert one is not None
    two = open_parts(gguf, [need(gguf, 1), need(gguf, 2)])
    assert isinstance(two, SplitBackend)
    assert said()[-2:] == ["layers 0 to 0 of 3 lie on first", "layers 1 to 2 of 3 lie on second"]
    for first, last in ((0, 5), (5, 6)):
        rows = make_batch(range(first, last), first)
        assert np.array_equal(two.run(rows), one.run(rows))
    assert two.limits.fork_block == one.limits.fork_block and two.limits.chooses


@pytest.mark.slow
def test_all_kinds_of_passes(gguf: GGUF) -> None:
    """Chunks, copies, saved states, on two cards and on one."""
    one = open_parts(gguf, [1 << 30])
    two = open_parts(gguf, [1 << 30, 1 << 30])
    assert one is not None and two is not None
    assert_same(run_pieces(two), run_pieces(one))


def test_refusals(gguf: GGUF, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "read_memory", lambda: Memory(1 << 34, 1 << 34))
    tight = need(gguf, 1) - 1
    with pytest.raises(PhobosError, match=r"needs .* of first, which has .* free of .*: use a smaller --ctx-size"):
        open_parts(gguf, [tight])
    with pytest.raises(PhobosError, match=r"needs .* of first and second, which have .* free of"):
        open_parts(gguf, [1000, 1000])
    with pytest.raises(PhobosError, match=r"needs .* of first, which has"):
        open_parts(gguf, [need(gguf, 1) + 100], replace(SETTINGS, gpu_layers=2))
    auto = replace(SETTINGS, device="auto")
    card = CardOf(tight)
    assert open_on_cards([card], build_program(gguf), gguf, auto, lambda progress: None) is None
    assert card.is_closed and said()[-1].startswith("the CPU computes: the model needs")
    with pytest.raises(PhobosError, match="the model needs"):
        open_parts(gguf, [tight], replace(auto, gpu_layers=2))


def test_layers_that_share_a_cache_stay_together(tmp_path: Path) -> None:
    with open_gguf(write_family_model(FAMILIES["gemma3n"], tmp_path / "m.gguf", FAMILIES["gemma3n"].mixed)) as gguf:
        pieces = Pieces(gguf, build_program(gguf))
        known = {pieces.n_layers - border.layer for border in pieces.borders}
        missing = next(n for n in range(1, pieces.n_layers) if n not in known)
        with pytest.raises(
            UsageError, match=rf"--gpu-layers {missing} would part layers that share a cache: use \d+ or"
        ):
            choose_places(pieces, [1 << 30], replace(SETTINGS, gpu_layers=missing))
