"""Who is connected, how many may be, and who has to go first.

Rules. At most `--max-connections` are served, fewer where the process may not open so many files. Before anyone is
refused, the connection that has been idle for longest is closed. Whoever is one too many may still ask what is never
refused (`/health`, `/metrics`) and is told that the server is full otherwise. A bound for one address
(`--max-connections-per-address`) holds for addresses elsewhere, never for this machine's own.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable

from phobos.http.transport.connection import Connection
from phobos.http.transport.wire import Refusal

log = logging.getLogger("phobos.http")

EXTRA_CONNECTIONS = 256  # beyond the limit, for a short answer; who comes then is dropped without a word
FILES_BESIDE = 64  # that a server opens besides connections
IDLE_S = 0.5  # a connection may be silent for so long before it counts as idle: a client may just be about to ask
SELDOM_S = 60.0


class Seldom:
    """A log line that comes at most once a minute and tells how often its reason has."""

    def __init__(self, message: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._message = message
        self._clock = clock
        self._n = 0
        self._next_s = float("-inf")

    def note(self) -> None:
        """It happened once more."""
        self._n += 1
        now_s = self._clock()
        if now_s >= self._next_s:
            log.warning(self._message, self._n)
            self._n, self._next_s = 0, now_s + SELDOM_S


def raise_file_limit(n_files: int) -> int | None:
    """How many files the process may open, raised towards `n_files` where the system allows; None: it does not tell."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < n_files:
        wanted = n_files if hard == resource.RLIM_INFINITY else min(n_files, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
        except (OSError, ValueError):
            pass
    return soft


def share_files(n_files: int | None, max_connections: int) -> tuple[int, int]:
    """How many connections to serve, and how many more to answer shortly, where `n_files` may be open."""
    if n_files is None or n_files >= max_connections + EXTRA_CONNECTIONS + FILES_BESIDE:
        return max_connections, EXTRA_CONNECTIONS
    free = max(2, n_files - FILES_BESIDE)
    n_extra = min(EXTRA_CONNECTIONS, max(1, free // 8))
    return min(max_connections, free - n_extra), n_extra


def is_local(peer: str) -> bool:
    """Whether an address is this machine's own."""
    if peer == "unix":
        return True
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class Roster:
    """See the module; used on the loop, `members` read from anywhere. Those who are refused stay members until they are
    gone, but do not count against the others."""

    def __init__(self, max_connections: int, max_extra: int, max_per_address: int | None) -> None:
        self._max = max_connections
        self._max_extra = max_extra
        self._max_per_address = max_per_address
        self._by_peer: Counter[str] = Counter()
        self._served: set[Connection] = set()
        self._dropped = Seldom("%d connections were dropped: too many are open already (--max-connections)")
        self.members: set[Connection] = set()

    def join(self, connection: Connection) -> Refusal | None:
        """Take a connection in, or say why it is one too many; it may try again."""
        peer = connection.peer
        self.members.add(connection)
        if self._max_per_address is not None and self._by_peer[peer] >= self._max_per_address and not is_local(peer):
            return self._refuse(
                connection, f"{self._max_per_address} connections from one address", "--max-connections-per-address"
            )
        if len(self._served) >= self._max and not self._close_idle():
            return self._refuse(connection, f"{self._max} connections", "--max-connections")
        self._served.add(connection)
        self._by_peer[peer] += 1
        return None

    def leave(self, connection: Connection) -> None:
        """Forget a connection; twice is fine."""
        self.members.discard(connection)
        self._discount(connection)

    def _discount(self, connection: Connection) -> None:
        if connection in self._served:
            self._served.discard(connection)
            self._by_peer[connection.peer] -= 1
            if not self._by_peer[connection.peer]:
                del self._by_peer[connection.peer]

    def _close_idle(self) -> bool:
        """Close the connection that has been idle for longest; False where none is."""
        waits = [(idle_s, c) for c in self._served if (idle_s := c.idle_s) is not None and idle_s >= IDLE_S]
        if not waits:
            return False
        _, longest = max(waits, key=lambda item: item[0])
        self._discount(longest)
        longest.retire()
        return True

    def _refuse(self, connection: Connection, what: str, flag: str) -> Refusal:
        if len(self.members) - len(self._served) > self._max_extra:
            self._dropped.note()
            connection.abort()
        return Refusal(
            429,
            f"this server takes {what} at once ({flag}): close one or try again",
            "rate_limit_error",
            code="too_many_connections",
            headers=(("retry-after", "1"),),
            close=True,
        )
