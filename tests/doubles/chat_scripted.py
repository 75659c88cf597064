"""`phobos-cli` with a scripted engine for the tests of the chat: the last message says how the answer goes.

Not a test. Run as a program it is `phobos-cli`, so that `chat` can be driven in a real terminal without weights.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from doubles.scripted_engine import ScriptedEngine, ScriptedModel, finished, last_text
from phobos.chat.events import Event, Failed, ReasoningDelta, TextDelta
from phobos.chat.messages import GenerationRequest
from phobos.counters import Counters, LoadProgress
from phobos.errors import UnavailableError
from phobos.settings import EngineSettings

DOCUMENT = """# A heading

Some **bold** words, `code`, and vector<int> with 中文字 and é.
A second line.

1. first
2. second
   - inner
3. third

| name | value |
|------|------:|
| one  | 1     |
| twenty-two | 22 |

```python
def f(x: int) -> int:

    return x + 1
```

<div>not lost</div>

Last words.
"""
LONG_CODE = "```\n" + "".join(f"line {n}\n" if n % 7 else "\n" for n in range(1, 101)) + "```\nDone.\n"
LONG_TABLE = (
    "| n | text |\n|---|---|\n" + "".join(f"| {n} | row {'x' * (n % 9)} |\n" for n in range(1, 61)) + "\nEnd.\n"
)
TEXTS = {"document": DOCUMENT, "long code": LONG_CODE, "long table": LONG_TABLE}


def talk(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
    """Answer as the last message asks; else tell which question of the conversation it was."""
    text = last_text(request)
    if "fail" in text:
        yield Failed(UnavailableError("the engine fell over: start again"))
        return
    if "forever" in text:
        for index in range(1, 1_000_000):
            yield TextDelta(f"tick{index} ")
            yield 0.01
    if "think" in text:
        for word in ("first", "this,", "then", "that"):
            yield ReasoningDelta(f"{word} ")
            yield 0.03
    found = next((whole for name, whole in TEXTS.items() if name in text), None)
    if found is None:
        n_question = sum(message.role == "user" for message in request.messages)
        seen = "".join(f"<{message.role}>" for message in request.messages)
        found = (
            f"Answer {n_question}: {len(text.splitlines())} lines, {len(text)} letters, {text.splitlines()[-1]} {seen}"
        )
    pieces = [found[start : start + 5] for start in range(0, len(found), 5)]
    for piece in pieces:
        yield TextDelta(piece)
        yield 0.002
    yield finished(tokens, len(pieces), n_cached=min(7, len(tokens)))


class ChatEngine(ScriptedEngine):
    """A scripted engine with what the chat needs of the real one."""

    def __init__(self, model: ScriptedModel, counters: Counters) -> None:
        super().__init__(model, talk)
        self.counters = counters

    def close(self, drain_s: float = 0.0) -> None:
        super().close()


def start_engine(settings: EngineSettings, counters: Counters, report: Any) -> ChatEngine:
    """Stand in for `runtime.start_engine`."""
    report(LoadProgress("packing weights", 0.5, "blk.0"))
    time.sleep(0.05)
    return ChatEngine(ScriptedModel(settings=settings), counters)


if __name__ == "__main__":
    from phobos import cli
    from phobos.repl import local

    local.start_engine = start_engine  # type: ignore[assignment]
    sys.exit(cli.main())
