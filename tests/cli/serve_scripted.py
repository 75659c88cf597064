"""`phobos-cli` with a scripted engine: SCRIPTED_LOAD_S seconds of loading, then SCRIPTED_END says how it goes.

Not a test: `test_serving.py` runs it as a process, with real sockets and signals and no weights.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from phobos import cli
from phobos.counters import Counters, LoadProgress
from phobos.errors import FileError, UnavailableError
from phobos.serving import Loader
from phobos.settings import EngineSettings

LOAD_S = float(os.environ.get("SCRIPTED_LOAD_S", "0"))
END = os.environ.get("SCRIPTED_END", "well")


def start_engine(settings: EngineSettings, counters: Counters, report: Any) -> Any:
    """Stand in for `runtime.start_engine`."""
    from doubles.scripted_engine import ScriptedEngine, ScriptedModel, endless, parrot

    report(LoadProgress("packing weights", 0.5, "blk.0"))
    time.sleep(LOAD_S)
    if END == "fails":
        raise FileError("the file is damaged: pull it again")
    if END == "defect":
        raise ZeroDivisionError("secret")

    class Engine(ScriptedEngine):
        def close(self, drain_s: float = 0.0) -> None:
            super().close()

    engine = Engine(ScriptedModel(), endless() if END == "endless" else parrot)
    counters.model = engine.model.info
    counters.state = "IDLE"
    if END == "dies":
        threading.Timer(0.3, lambda: engine.die(UnavailableError("the engine ran out of luck: start again"))).start()
    return engine


def load_scripted(loader: Loader) -> None:
    """Load as the real loader does, but for the engine; nothing heavy is imported before."""
    import phobos.runtime

    phobos.runtime.start_engine = start_engine
    load(loader)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    load = Loader.run
    Loader.run = load_scripted  # type: ignore[method-assign]
    if "SCRIPTED_FILES" in os.environ:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["SCRIPTED_FILES"]),) * 2)
    sys.exit(cli.main())
