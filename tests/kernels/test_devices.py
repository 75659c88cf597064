"""`--device`: what each word means with and without a card, and a card that is too small."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import phobos.kernels.placing.opening
from models.tiny_models import RECIPES, write_tiny_model
from phobos.archs import build_program
from phobos.errors import PhobosError, UsageError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.kernels.cuda import card as cards
from phobos.kernels.cuda.card import CardError
from phobos.kernels.placing.devices import open_cards
from phobos.kernels.placing.opening import open_backend
from phobos.settings import EngineSettings
from ptx.card import PtxCard

Patch = pytest.MonkeyPatch


def open_named(device: str, gpu_layers: int | None = None) -> tuple[object, ...]:
    return open_cards(EngineSettings(Path("m.gguf"), device=device, gpu_layers=gpu_layers))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "phobos.load")
    logging.getLogger("phobos").propagate = True
    return lambda: [record.getMessage() for record in caplog.records if record.name == "phobos.load"]


def test_words_that_are_no_device() -> None:
    for word in ("gpu", "cuda:", "cuda:x", "cuda:0,", "cuda:0,,1", "cuda:-1", ""):
        with pytest.raises(
            UsageError, match=r"use --device cpu, cuda, cuda:N \(one card\), cuda:N,M \(several\), or auto"
        ):
            open_named(word)
    assert open_named("cpu") == ()


def test_without_the_extra(monkeypatch: Patch, said: Callable[[], list[str]]) -> None:
    monkeypatch.setattr(cards, "is_installed", lambda: False)
    for has_driver, n_lines in ((False, 0), (True, 1)):
        monkeypatch.setattr(cards, "has_driver", lambda found=has_driver: found)
        assert open_named("auto") == ()
        assert len(said()) == n_lines
    assert said()[0].startswith("the CPU computes: ") and "pip install 'phobos[cuda]'" in said()[0]
    with pytest.raises(PhobosError, match=r"--device cuda is not possible: .* pip install 'phobos\[cuda\]' \(or use"):
        open_named("cuda")


def test_without_a_card(monkeypatch: Patch, said: Callable[[], list[str]]) -> None:
    monkeypatch.setattr(cards, "is_installed", lambda: True)
    monkeypatch.setattr(cards, "list_cards", lambda: [])
    monkeypatch.setattr(cards, "has_driver", lambda: False)
    assert open_named("auto") == ()
    assert said() == []
    monkeypatch.setattr(cards, "has_driver", lambda: True)
    assert open_named("auto") == ()
    assert said() == ["the CPU computes: the NVIDIA driver knows no card"]
    with pytest.raises(PhobosError, match="--device cuda:1 is not possible: the NVIDIA driver knows no card"):
        open_named("cuda:1")


def test_a_number_there_is_not(monkeypatch: Patch) -> None:
    monkeypatch.setattr(cards, "is_installed", lambda: True)
    monkeypatch.setattr(cards, "list_cards", lambda: ["First", "Second"])
    for device in ("cuda:2", "cuda:0,2"):
        with pytest.raises(UsageError, match="no card number 2: there is cuda:0 First, cuda:1 Second"):
            open_named(device)
    with pytest.raises(UsageError, match="names card number 1 twice: name each card once"):
        open_named("cuda:1,0,1")


def test_several_cards_in_the_order_they_are_named(monkeypatch: Patch) -> None:
    """Those that were opened are closed again where one cannot be."""
    closed = []

    class NumberedCard(PtxCard):
        def __init__(self, number: int) -> None:
            if number == 2:
                raise CardError("the card is broken")
            super().__init__(1 << 20)
            self.number = number

        def close(self) -> None:
            closed.append(self.number)

    monkeypatch.setattr(cards, "is_installed", lambda: True)
    monkeypatch.setattr(cards, "list_cards", lambda: ["First", "Second", "Third"])
    monkeypatch.setattr(cards, "NvidiaCard", NumberedCard)
    assert [card.number for card in open_named("cuda:1,0")] == [1, 0]  # type: ignore[attr-defined]
    with pytest.raises(CardError, match="broken"):
        open_named("cuda:0,2")
    assert closed == [0]


def test_layers_for_cards_there_are_not(monkeypatch: Patch) -> None:
    monkeypatch.setattr(cards, "is_installed", lambda: True)
    monkeypatch.setattr(cards, "list_cards", lambda: [])
    monkeypatch.setattr(cards, "has_driver", lambda: False)
    with pytest.raises(UsageError, match="--gpu-layers 3 needs a card: leave it out, or use --device cuda"):
        open_named("cpu", 3)
    with pytest.raises(PhobosError, match=r"--gpu-layers 3 is not possible: there is no card \(or leave it out\)"):
        open_named("auto", 3)
    assert open_named("cpu", 0) == open_named("auto", 0) == open_named("cuda:7", 0) == ()


def test_a_card_that_is_too_small(tmp_path: Path, monkeypatch: Patch, said: Callable[[], list[str]]) -> None:
    """Left to Phobos, the CPU takes over and a line says why; asked for, it is an error."""

    class SmallCard(PtxCard):
        def memory_info(self) -> tuple[int, int]:
            return 257 << 20, 1 << 30

    monkeypatch.setattr(phobos.kernels.placing.opening, "open_cards", lambda settings: (SmallCard(),))
    path = write_tiny_model(RECIPES["llama"], tmp_path / "tiny.gguf", (GGMLType.Q8_0,))
    with open_gguf(path) as gguf:
        backend, _ = open_backend(build_program(gguf), gguf, EngineSettings(path, n_slots=1), lambda progress: None)
        assert backend.describe().kind == "cpu"
        backend.close()
        assert [line for line in said() if line.startswith("the CPU computes: the model needs")]
        settings = EngineSettings(path, device="cuda")
        with pytest.raises(PhobosError, match=r"needs .* of PTX machine, which has .* free of .*or --device cpu"):
            open_backend(build_program(gguf), gguf, settings, lambda progress: None)
