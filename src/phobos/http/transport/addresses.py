"""Where the server listens: `host:port`, `[::1]:port`, `:port`, `unix:/path`. Parsing and binding, no loop."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from phobos.errors import PhobosError, UsageError

BACKLOG = 512


@dataclass(frozen=True)
class Address:
    """A place to listen; exactly one of `path` (a unix socket) and `host` is set. An empty host is every address."""

    host: str | None = None
    port: int = 0
    path: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.path is not None or is_loopback(self.host or "")

    @property
    def host_names(self) -> tuple[str, ...]:
        """What a client on this address may write into its Host header."""
        return () if not self.host else (self.host.lower(),)

    def url(self) -> str:
        """The address as a client writes it."""
        if self.path is not None:
            return "unix:" + self.path
        host = self.host or "0.0.0.0"
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> Address:
    """Parse `--listen`. Raises `UsageError`."""
    if text.startswith("unix:"):
        if len(text) == len("unix:"):
            raise UsageError("--listen unix: needs the path of a socket, such as unix:/run/phobos.sock")
        return Address(path=text[len("unix:") :])
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"--listen {text} is ambiguous: write an IPv6 address in brackets, such as [::1]:8080")
    if not colon or not (port.isascii() and port.isdigit()):
        raise UsageError(f"--listen {text or '(empty)'} has no port: write host:port, such as 127.0.0.1:8080")
    if int(port) > 65535:
        raise UsageError(f"--listen {text} names no port: they go from 0 to 65535, and 0 lets the system choose")
    return Address(host=host, port=int(port))


def check_exposed(address: Address, *, has_key: bool, insecure: bool) -> None:
    """Refuse to serve other machines without a key. Raises `UsageError`."""
    if not (address.is_local or has_key or insecure):
        raise UsageError(
            f"{address.url()} can be reached from other machines: set --api-key, or --insecure if that is wanted"
        )


def bind_socket(address: Address) -> tuple[socket.socket, Address]:
    """A listening socket, and the address with the port the system chose. Raises `PhobosError` in one sentence."""
    try:
        if address.path is not None:
            return _bind_unix(address.path), address
        sock = _bind_tcp(address)
    except OSError as error:
        reason = "is in use by another program" if error.errno == errno.EADDRINUSE else _reason(error)
        raise PhobosError(f"{address.url()} {reason}: choose another --listen address") from error
    return sock, Address(host=address.host, port=int(sock.getsockname()[1]))


def _reason(error: OSError) -> str:
    return "cannot be used (" + (os.strerror(error.errno) if error.errno and error.errno > 0 else "unknown host") + ")"


def _bind_tcp(address: Address) -> socket.socket:
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(address.host or "0.0.0.0", address.port, type=socket.SOCK_STREAM, flags=flags)
    family, kind, protocol, _, target = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(target)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _bind_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.bind(path)
        Path(path).chmod(0o600)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _remove_stale(path: str) -> None:
    """Remove the socket of a server that is gone; one that still answers keeps its address."""
    place = Path(path)
    if not place.exists():
        return
    if not stat.S_ISSOCK(place.stat().st_mode):
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(ConnectionRefusedError):
        probe.connect(path)
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    place.unlink()
