"""A dashboard over a scripted engine: feeds `Counters` as a load and one streamed request would, in real time.

Run as a script in a terminal: `dashboard_scripted.py [SCENE [FOLDER]]`. Scenes: `request` (default), `idle`,
`load-fails`, `engine-dies`, `panel-breaks`, `noise`, `stuck` (it does not stop). With a folder, each phase of the
request lasts until a file of the next one's name is there. It ends with a line of its own, so that a test sees who
wrote last.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from dashboard_moments import CARD, MODEL, blank
from phobos.counters import Counters, LoadProgress, RequestInfo, SlotInfo
from phobos.errors import PhobosError
from phobos.tui.log import LogRing
from phobos.tui.panels.model import ModelPanel
from phobos.tui.run import run_dashboard

STEP_S = 0.02
log = logging.getLogger("phobos.scripted")


def load(counters: Counters, *, fails: bool = False) -> None:
    """A moment of loading."""
    for i in range(21):
        if fails and i == 10:
            counters.load = LoadProgress("failed", 0.5, error="the file made-up.gguf is damaged: download it again")
            counters.state = "FAILED"
            log.error("loading failed")
            return
        counters.load = LoadProgress("packing weights", i / 20, f"blk.{i}.ffn_down.weight", 41, i, i)
        time.sleep(STEP_S)
    counters.model, counters.card = MODEL, CARD
    counters.load = LoadProgress("ready", 1.0, kernels_total=41, kernels_compiled=20, kernels_cached=20)
    counters.slots = (SlotInfo(0, 0, busy=False, last_used_s=time.monotonic()),)
    counters.state = "IDLE"
    log.info("the model is loaded")


def pause(folder: Path | None, phase: str, seconds: float) -> None:
    """Wait for the file that lets `phase` begin, or some seconds where there is no folder."""
    until = time.monotonic() + (seconds if folder is None else 60.0)
    while time.monotonic() < until and (folder is None or not (folder / phase).exists()):
        time.sleep(STEP_S)


def serve_one(counters: Counters, request_id: str, folder: Path | None, n_tokens: int = 40) -> None:
    """One request: waits, reads its prompt, answers, ends in the list."""
    now = time.monotonic()
    request = RequestInfo(request_id, "queued", None, 600, 100, 100, 0, now)
    counters.requests_received += 1
    counters.queue_depth = 1
    counters.live = (request,)
    pause(folder, "prefill", 1.0)
    counters.queue_depth = 0
    counters.requests_admitted += 1
    counters.prompt_tokens += 600
    counters.prompt_tokens_reused += 100
    counters.state = "PREFILL"
    request = replace(request, phase="prefill", slot=0, started_s=time.monotonic())
    for i in range(20):
        time.sleep(STEP_S)
        request = replace(request, n_prompt_done=request.n_prompt_done + 25)
        counters.live = (request,)
        counters.prompt_tokens_computed += 25
        counters.prompt_s += STEP_S
        counters.passes += 1
        if i == 9:
            pause(folder, "rest-of-prompt", 0.0)
    pause(folder, "decode", 0.0)
    counters.state = "DECODE"
    request = replace(request, phase="decode", first_token_s=time.monotonic(), n_generated=1)
    for _ in range(n_tokens):
        time.sleep(STEP_S)
        request = replace(request, n_generated=request.n_generated + 1)
        counters.live = (request,)
        counters.generated_tokens += 1
        counters.decode_tokens += 1
        counters.decode_s += STEP_S
        counters.passes += 1
        counters.slots = (SlotInfo(0, 600 + request.n_generated, busy=True, last_used_s=time.monotonic()),)
    pause(folder, "done", 0.0)
    counters.live = ()
    counters.recent.appendleft(replace(request, phase="done", finished_s=time.monotonic(), finish_reason="stop"))
    counters.requests_completed += 1
    counters.slots = (replace(counters.slots[0], busy=False),)
    counters.state = "IDLE"
    log.info("%s is answered", request_id)


def make_noise() -> None:
    """Everything a library may do to a terminal."""
    print("printed by python")
    print("an escape \x1b[2J\x1b[H here")
    sys.__stdout__.write("written past the capture\n")
    sys.__stdout__.flush()
    os.write(2, b"written to descriptor 2\n")
    subprocess.run(["echo", "echoed by a child"], check=True)
    libc = ctypes.CDLL(None)
    libc.puts(b"put by the C library")
    libc.fflush(None)
    logging.getLogger("some.library").warning("logged by a library")


def play(scene: str, counters: Counters, folder: Path | None) -> None:
    """What the loader and engine threads would do."""
    load(counters, fails=scene == "load-fails")
    if scene == "request":
        serve_one(counters, "chatcmpl-first", folder)
    elif scene == "noise":
        make_noise()
    elif scene == "engine-dies":
        log.error("the worker team lost a thread")
        counters.failure = "the engine stopped: the worker team lost a thread"
        counters.state = "FAILED"
    elif scene == "panel-breaks":

        def broken(*_: object) -> None:
            raise ZeroDivisionError("made to fail")

        ModelPanel.draw = broken  # type: ignore[assignment]


def main(scene: str, folder: Path | None) -> int:
    counters = Counters(address=blank().address)
    ring = LogRing()
    logging.basicConfig(level=logging.INFO, handlers=[ring])
    stopped: list[float] = []

    def stop() -> None:
        stopped.append(time.monotonic())
        time.sleep(60 if scene == "stuck" else 0.3)

    threading.Thread(target=play, args=(scene, counters, folder), daemon=True).start()
    try:
        failure = run_dashboard(counters, ring, animate=scene == "request", on_quit=stop)
    except KeyboardInterrupt:
        print(f"stopped {len(stopped)} time(s), in a hurry", flush=True)
        os._exit(130)
    except PhobosError as error:
        failure = str(error)
    print(f"stopped {len(stopped)} time(s), failure: {failure}")
    return 1 if failure else 0


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "request"]
    sys.exit(main(arguments[0], Path(sys.argv[2]) if len(sys.argv) > 2 else None))
