"""`--device`: what each word means with and without a card, and a card that is too small."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import phobos.kernels
from phobos.errors import PhobosError, UsageError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.kernels import open_backend
from phobos.kernels.cuda import card as cards
from phobos.kernels.devices import open_card
from phobos.settings import EngineSettings
from ptx_card import PtxCard
from tiny_models import RECIPES, write_tiny_model

Patch = pytest.MonkeyPatch


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "phobos.load")
    logging.getLogger("phobos").propagate = True
    return lambda: [record.getMessage() for record in caplog.records if record.name == "phobos.load"]


def test_words_that_are_no_device() -> None:
    for word in ("gpu", "cuda:", "cuda:x", "cuda:0,1", ""):
        with pytest.raises(UsageError, match=r"use --device cpu, cuda, cuda:N \(one card\), or auto"):
            open_card(word)
    assert open_card("cpu") is None


def test_without_the_extra(monkeypatch: Patch, said: Callable[[], list[str]]) -> None:
    monkeypatch.setattr(cards, "is_installed", lambda: False)
    for has_driver, n_lines in ((False, 0), (True, 1)):
        monkeypatch.setattr(cards, "has_driver", lambda found=has_driver: found)
        assert open_card("auto") is None
        assert len(said()) == n_lines
    assert said()[0].startswith("the CPU computes: ") and "pip install 'phobos[cuda]'" in said()[0]
    with pytest.raises(PhobosError, match=r"--device cuda is not possible: .* pip install 'phobos\[cuda\]' \(or use"):
        open_card("cuda")


def test_without_a_card(monkeypatch: Patch, said: Callable[[], list[str]]) -> None:
    monkeypatch.setattr(cards, "is_installed", lambda: True)
    monkeypatch.setattr(cards, "list_cards", lambda: [])
    monkeypatch.setattr(cards, "has_driver", lambda: False)
    assert open_card("auto") is None
    assert said() == []
    monkeypatch.setattr(cards, "has_driver", lambda: True)
    assert open_card("auto") is None
    assert said() == ["the CPU computes: the NVIDIA driver knows no card"]
    with pytest.raises(PhobosError, match="--device cuda:1 is not possible: the NVIDIA driver knows no card"):
        open_card("cuda:1")


def test_a_number_there_is_not(monkeypatch: Patch) -> None:
    monkeypatch.setattr(cards, "is_installed", lambda: True)
    monkeypatch.setattr(cards, "list_cards", lambda: ["First", "Second"])
    with pytest.raises(UsageError, match="no card number 2: there is cuda:0 First, cuda:1 Second"):
        open_card("cuda:2")


def test_a_card_that_is_too_small(tmp_path: Path, monkeypatch: Patch, said: Callable[[], list[str]]) -> None:
    """Left to Phobos, the CPU takes over and a line says why; asked for, it is an error."""

    class SmallCard(PtxCard):
        def memory_info(self) -> tuple[int, int]:
            return 257 << 20, 1 << 30

    monkeypatch.setattr(phobos.kernels, "open_card", lambda device: SmallCard())
    path = write_tiny_model(RECIPES["llama"], tmp_path / "tiny.gguf", (GGMLType.Q8_0,))
    with open_gguf(path) as gguf:
        backend, _ = open_backend(gguf, EngineSettings(path, n_slots=1), lambda progress: None)
        assert backend.describe().kind == "cpu"
        backend.close()
        assert [line for line in said() if line.startswith("the CPU computes: the model needs")]
        settings = EngineSettings(path, device="cuda")
        with pytest.raises(PhobosError, match=r"needs .* of PTX machine, which has .* free of .*or --device cpu"):
            open_backend(gguf, settings, lambda progress: None)
