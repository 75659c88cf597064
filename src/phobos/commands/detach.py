"""`--detach`: start the same server again without a terminal, and return once it listens."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from phobos.errors import PhobosError
from phobos.host import servers

LISTENS_S = 30.0
POLL_S = 0.05


def start_detached(args: Sequence[str]) -> int:
    """`args` is the command line; its `--detach` is left out."""
    logs = servers.log_path(0).parent
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    opening = logs / f"starting-{time.time_ns()}.log"
    command = [sys.executable, "-m", "phobos.cli", *(arg for arg in args if arg != "--detach"), "--no-tui"]
    with opening.open("wb") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True
        )
    kept = opening.rename(servers.log_path(child.pid))
    deadline_s = time.monotonic() + LISTENS_S
    while time.monotonic() < deadline_s:
        server = next((s for s in servers.list_servers() if s.pid == child.pid), None)
        if server is not None:
            print(f"listening on {server.address}, process {server.pid}; `phobos-cli log -f` shows its log")
            child.returncode = 0  # it goes on without us: no warning that nobody waited for it
            return 0
        if child.poll() is not None:
            last = kept.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise PhobosError(f"the server did not start: {last[0].partition(': ')[2] or last[0]}")
        time.sleep(POLL_S)
    child.kill()
    raise PhobosError(f"the server did not listen within {LISTENS_S:g} s: see {kept}")
