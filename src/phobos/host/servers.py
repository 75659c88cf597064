"""The servers of this user that run on this machine: a small file for each, which its server writes and removes.

A server that was killed leaves its file behind. So a file counts only while its process runs and is the same process:
process ids are used again, hence the file also has when the process started, where the system tells. Reading removes
what is left over.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from phobos.errors import FileError, UsageError
from phobos.host.folders import state_dir

POLL_S = 0.05


@dataclass(frozen=True)
class Server:
    """One server: its process, address and model (a path), when it began to listen (seconds since 1970), and the
    system's own mark of when the process started."""

    pid: int
    address: str
    model: str
    listens_since_s: float
    process_mark: str | None = None


@contextlib.contextmanager
def registered(address: str, model: Path) -> Iterator[None]:
    """Be listed meanwhile. A folder that cannot be written only means that `phobos-cli ps` does not know."""
    pid = os.getpid()
    path = _folder() / f"{pid}.json"
    server = Server(pid, address, str(model), time.time(), _process_mark(pid))
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(server)), encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def list_servers() -> list[Server]:
    """Those that run, the oldest first."""
    found = []
    for path in _folder().glob("*.json"):
        server = _read(path)
        if server is not None and _runs(server):
            found.append(server)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return sorted(found, key=lambda server: server.listens_since_s)


def find_server(name: str | None) -> Server:
    """The server with this process id, address, port or model name; without a name the only one. Raises
    `UsageError`."""
    servers = list_servers()
    if not servers:
        raise UsageError("no server is running: `phobos-cli serve` starts one")
    fitting = [server for server in servers if name is None or name in _names(server)]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(f"{server.pid} ({server.address})" for server in fitting or servers)
    if name is None or fitting:
        raise UsageError(f"several servers are running: name one of {listed}")
    raise UsageError(f"no server is called {name}: running are {listed}")


def stop_server(server: Server, wait_s: float) -> None:
    """Ask it to stop and wait for its end. Raises `FileError` where it may not be told or does not end in time."""
    try:
        os.kill(server.pid, signal.SIGTERM)
    except PermissionError as error:
        raise FileError(f"process {server.pid} belongs to another user: it cannot be stopped from here") from error
    except ProcessLookupError:
        return
    deadline_s = time.monotonic() + wait_s
    while _runs(server):
        if time.monotonic() > deadline_s:
            raise FileError(f"process {server.pid} still runs after {wait_s:g} s: `kill -9 {server.pid}` ends it")
        time.sleep(POLL_S)


def log_path(pid: int) -> Path:
    """Where a server without a terminal writes its log."""
    return state_dir() / "logs" / f"{pid}.log"


def _folder() -> Path:
    return state_dir() / "servers"


def _names(server: Server) -> set[str]:
    bare = server.address.rpartition("//")[2]
    return {str(server.pid), server.address, bare, bare.rpartition(":")[2], server.model, Path(server.model).stem}


def _read(path: Path) -> Server | None:
    try:
        return Server(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _runs(server: Server) -> bool:
    try:
        os.kill(server.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _process_mark(server.pid) == server.process_mark


def _process_mark(pid: int) -> str | None:
    """When a process started, in the system's ticks since it was booted; None where the system does not tell, and a
    word for a process that has ended but whose parent has not asked after it."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return "ended" if facts[0] == "Z" else facts[19]
