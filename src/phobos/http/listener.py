"""The listener: sockets bound at once, one thread with one loop, and the server's life from load to drain.

Order of life: `bind` (before any weight is read), `start`, then `attach` when the model is ready or `fail` when it is
not, and `close`. All methods may be called from any thread; what touches the loop is handed over to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phobos.counters import Counters
from phobos.errors import PhobosError, UnavailableError, UsageError
from phobos.http.delivery import Mailbox
from phobos.http.generation import Generations
from phobos.http.metrics import Metrics
from phobos.http.routes import Routes
from phobos.http.served import ServedEngine
from phobos.http.transport.addresses import Address, bind_socket, check_exposed, parse_address
from phobos.http.transport.connection import Connection, ConnectionLimits
from phobos.http.transport.keys import KeyRing
from phobos.http.transport.roster import EXTRA_CONNECTIONS, FILES_BESIDE, Roster, Seldom, raise_file_limit, share_files
from phobos.http.transport.security import build_guard
from phobos.settings import ServeSettings

log = logging.getLogger("phobos.http")

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BACKLOG = 128  # connections that wait to be taken in, and are taken in at one time
END_S = 2.0
WATCH_S = 0.5


class Listener:
    """See the module's text."""

    def __init__(self, serve: ServeSettings, counters: Counters) -> None:
        self._settings = serve
        self._counters = counters
        self._address: Address | None = None
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._generations: Generations | None = None
        wanted = serve.max_connections
        n_files = raise_file_limit(wanted + EXTRA_CONNECTIONS + FILES_BESIDE + BACKLOG)
        n_served, n_extra = share_files(n_files, wanted)
        self._backlog = BACKLOG if n_extra == EXTRA_CONNECTIONS else FILES_BESIDE // 2
        if n_served < wanted:
            log.warning(
                "only %d files may be open: %d connections at once instead of %d; raise it by ulimit -n",
                n_files,
                n_served,
                wanted,
            )
        self._roster = Roster(n_served, n_extra, serve.max_connections_per_address)
        self._drain_s: float | None = None

    @property
    def address(self) -> str:
        """The address as a client writes it, with the port in use. Raises before `bind`."""
        if self._address is None:
            raise UsageError("the listener is not bound yet")
        return self._address.url()

    def bind(self) -> str:
        """Take the address; returns it. Raises `UsageError` or `PhobosError`."""
        address = parse_address(self._settings.listen)
        has_key = bool(KeyRing(self._settings.api_keys))
        check_exposed(address, has_key=has_key, insecure=self._settings.insecure)
        self._socket, self._address = bind_socket(address)
        self._counters.address = self.address
        return self.address

    def start(self) -> None:
        """Begin to answer; returns once the loop runs."""
        if self._socket is None:
            self.bind()
        self._thread = threading.Thread(target=self._run, name="phobos-http", daemon=True)
        self._thread.start()
        self._ready.wait()

    def attach(self, engine: ServedEngine) -> None:
        """The model is ready: let the waiting requests in."""
        self._call(lambda generations: generations.attach(engine))

    def fail(self, error: PhobosError) -> None:
        """The model will not come, or is gone: answer everybody 503 with the reason."""
        reason = error if isinstance(error, UnavailableError) else UnavailableError(str(error))
        self._call(lambda generations: generations.fail(reason))

    def close(self, drain_s: float | None = None) -> None:
        """Stop accepting, give running requests `drain_s` seconds, end. Twice is fine; 0 ends at once."""
        drain = self._settings.drain_s if drain_s is None else drain_s
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._begin_stop, drain)
            thread.join(drain + 2 * END_S)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._address is not None and self._address.path is not None:
            Path(self._address.path).unlink(missing_ok=True)

    @property
    def n_connections(self) -> int:
        """Open connections."""
        return len(self._roster.members)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _call(self, act: Callable[[Generations], None]) -> None:
        loop, generations = self._loop, self._generations
        if loop is not None and generations is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile: nobody is left to tell
                loop.call_soon_threadsafe(act, generations)

    def _begin_stop(self, drain_s: float) -> None:
        self._drain_s = drain_s if self._drain_s is None else min(drain_s, self._drain_s)
        if self._stop is not None:
            self._stop.set()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            try:
                runner.run(self._main())
            finally:
                self._ready.set()

    async def _main(self) -> None:
        assert self._socket is not None and self._address is not None
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_handle_loop_error(Seldom(_NO_FILES)))
        settings = self._settings
        self._stop = asyncio.Event()
        generations = Generations(settings, self._counters, Metrics(), Mailbox(loop))
        self._generations = generations
        routes = Routes(generations, self._counters, build_guard(settings, self._address))
        limits = ConnectionLimits(
            settings.max_body_bytes, settings.request_timeout_s, settings.keep_alive_s, settings.write_timeout_s
        )

        def connect() -> Connection:
            return Connection(routes, limits, self._roster)

        if self._address.path is not None:
            server: asyncio.Server = await loop.create_unix_server(connect, sock=self._socket, backlog=self._backlog)
        else:
            server = await loop.create_server(connect, sock=self._socket, backlog=self._backlog)
        watch = loop.create_task(self._watch(generations))
        self._ready.set()
        await self._stop.wait()
        # A connection that was accepted a moment ago becomes a member within two turns of the loop; asyncio would
        # lose its socket if the server were closed before that. So stop accepting first, and close then.
        loop.remove_reader(self._socket)
        for _ in range(3):
            await asyncio.sleep(0)
        server.close()
        await self._drain(generations)
        watch.cancel()
        generations.close()

    async def _watch(self, generations: Generations) -> None:
        """Notice an engine that has died, so that those who wait for it are told."""
        while True:
            await asyncio.sleep(WATCH_S)
            failure = generations.failure
            if failure is not None:
                generations.fail(failure)

    async def _drain(self, generations: Generations) -> None:
        """Answer what runs while there is time, then end it properly, then end it."""
        stopping = UnavailableError("the server is shutting down")
        generations.queue.close(stopping)
        for connection in list(self._roster.members):
            connection.retire()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self._roster.members and loop.time() - began_s < (self._drain_s or 0.0):
            await asyncio.sleep(0.01)
        generations.fail(stopping)
        deadline = loop.time() + END_S
        while self._roster.members and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._roster.members):
            connection.abort()
            await connection.gone()


_NO_FILES = "connections wait to be taken in, which failed %d times: the process has no more files to open (ulimit -n)"


def _handle_loop_error(no_files: Seldom) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """What the loop does about errors that nobody awaits: asyncio retries to accept a connection after a second, and
    would write a traceback for every try."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in OUT_OF_FILES:
            no_files.note()
        else:
            loop.default_exception_handler(context)

    return handle
