"""The chat with a real model: three turns on a terminal, and the cache at work between them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import PseudoTerminal

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def test_three_turns_with_a_real_model(
    start_chat: Callable[..., PseudoTerminal], smollm2: Path, tmp_path: Path
) -> None:
    program = ("-m", "phobos.cli")
    chat = start_chat("--no-attach", "--gguf", str(smollm2), "--temp", "0", "-n", "24", program=program)
    chat.ask("What is the capital of France?")
    second = chat.ask("And which river flows there?")
    reused, n_prompt = map(int, re.search(r"(\d+)/(\d+) reused", second).groups())  # type: ignore[union-attr]
    assert reused > 30 and n_prompt > reused  # the first exchange is not read again
    retried = chat.ask("/retry")
    assert "will be the same" in retried
    chat.ask("/tokens", r"the conversation has \d+ tokens of")
    chat.ask(f"/save {tmp_path}/t.json", "saved 4 messages")
    chat.ask("/decide does it name a city? yes | no", "confidence")
    third = chat.ask("Thank you!")
    assert "tok/s" in third
    assert chat.quit() == 0
