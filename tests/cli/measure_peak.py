"""Load a model as the command line does, fill its context, and print the peak of memory.

Not a test: `test_plan.py` runs it as a process: MODEL N_CTX. Prints bytes.
"""

from __future__ import annotations

import queue
import sys
from pathlib import Path
from typing import Any

from phobos.chat.events import Failed, Finished
from phobos.chat.messages import GenerationRequest
from phobos.counters import Counters
from phobos.runtime import start_engine
from phobos.settings import EngineSettings


def peak_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main(path: Path, n_ctx: int) -> None:
    engine = start_engine(EngineSettings(path, n_ctx=n_ctx, n_slots=1), Counters(), lambda progress: None)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    tokens = tuple(100 + i % 1000 for i in range(n_ctx - 4))
    request = GenerationRequest("peak", prompt=tokens, max_tokens=2)
    engine.submit(engine.model.prepare(request), events.put)
    while not isinstance(event := events.get(timeout=300), Finished):
        assert not isinstance(event, Failed), event
    engine.close(0.0)
    print(peak_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
