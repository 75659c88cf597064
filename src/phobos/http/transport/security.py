"""Who may ask: keys, the Host guard against DNS rebinding, pages of other sites, and CORS. Pure rules over a request's
head; `docs/security.md` says what they are for."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from phobos.http.transport.addresses import Address, is_loopback
from phobos.http.transport.keys import KeyRing
from phobos.http.transport.wire import Headers, Refusal, RequestHead
from phobos.settings import ServeSettings

log = logging.getLogger("phobos.http")

LOCAL_ORIGINS = frozenset({"tauri://localhost", "http://tauri.localhost", "https://tauri.localhost"})
ALLOWED_METHODS = "GET, HEAD, POST, OPTIONS"
ALLOWED_HEADERS = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, x-request-id"
EXPOSED_HEADERS = "x-request-id, x-phobos-queue-wait-ms, x-phobos-ignored-fields, x-phobos-unenforced, retry-after"
_OPEN_PATHS = frozenset({"/health", "/v1/health", "/"})


@dataclass(frozen=True)
class Guard:
    """The rules of one server."""

    keys: KeyRing
    hosts: frozenset[str]
    any_host: bool
    origins: frozenset[str]
    any_origin: bool
    local_origins: bool

    def refuse(self, head: RequestHead) -> Refusal | None:
        """Why this request is not let in, or None."""
        if not self.knows_host(head.header("host")):
            return Refusal(
                403,
                "this Host header is not served: add it with --allowed-host",
                "permission_error",
                code="forbidden",
            )
        if head.method == "OPTIONS" or head.path in _OPEN_PATHS:
            return None
        if self.knows_key(head):
            return self._refuse_page(head)
        return Refusal(
            401,
            "the API key is missing or wrong: send it as Authorization: Bearer KEY, or as x-api-key",
            "authentication_error",
            code="invalid_api_key",
            headers=(("www-authenticate", "Bearer"),),
        )

    def knows_key(self, head: RequestHead) -> bool:
        """Whether the request carries a key; every request does where none is set."""
        return not self.keys or self.owner(head) is not None

    def owner(self, head: RequestHead) -> str | None:
        """Whose key a request carries; None where it carries none, or none is set."""
        given = [head.header("x-api-key") or ""]
        scheme, _, token = (head.header("authorization") or "").partition(" ")
        if scheme.lower() == "bearer":
            given.append(token.strip())
        return self.keys.owner(given)

    def _refuse_page(self, head: RequestHead) -> Refusal | None:
        """Where no key is set, a request that changes or computes something is not for pages of strangers: browsers
        send what a page wants and say whose page it is. Who sends a key has been trusted with it."""
        if head.method in ("GET", "HEAD") or self.keys:
            return None
        origin = head.header("origin")
        is_foreign = not self.knows_origin(origin) if origin is not None else _is_cross_site(head)
        if not is_foreign:
            return None
        return Refusal(
            403,
            "a web page of another site asks: allow its origin with --cors-origin, or set an API key",
            "permission_error",
            code="forbidden_origin",
        )

    def knows_host(self, host: str | None) -> bool:
        """Whether a Host header names this server. HTTP/1.0 clients send none."""
        if self.any_host or host is None:
            return True
        name = host_name(host)
        return name is not None and (is_loopback(name) or name in self.hosts)

    def cors(self, head: RequestHead | None) -> Headers:
        """The CORS headers of a reply."""
        origin = head.header("origin") if head is not None else None
        if origin is None:
            return ()
        if self.any_origin:
            return (("Access-Control-Allow-Origin", "*"), ("access-control-expose-headers", EXPOSED_HEADERS))
        if not self.knows_origin(origin):
            return (("vary", "Origin"),)
        return (
            ("Access-Control-Allow-Origin", origin),
            ("access-control-expose-headers", EXPOSED_HEADERS),
            ("vary", "Origin"),
        )

    def knows_origin(self, origin: str) -> bool:
        """Whether a page of this origin may read replies."""
        if self.any_origin or origin in self.origins:
            return True
        if not self.local_origins:
            return False
        if origin in LOCAL_ORIGINS:
            return True
        match = re.fullmatch(r"https?://(\[[0-9a-f:]+\]|[^/:\[\]]+)(:\d+)?", origin)
        return match is not None and is_loopback(match[1].strip("[]"))

    def preflight(self, head: RequestHead) -> Headers:
        """What an answer to OPTIONS says beyond `cors`."""
        allow: Headers = (("allow", ALLOWED_METHODS),)
        origin = head.header("origin")
        if origin is None or not self.knows_origin(origin):
            return allow
        lines: Headers = (
            *allow,
            ("access-control-allow-methods", ALLOWED_METHODS),
            ("access-control-allow-headers", _wanted_headers(head)),
            ("access-control-max-age", "600"),
        )
        if head.header("access-control-request-private-network") == "true":
            lines = (*lines, ("access-control-allow-private-network", "true"))
        return lines


def build_guard(settings: ServeSettings, address: Address) -> Guard:
    """The rules for an address. Origins: `X` replaces the local defaults, `+X` adds, `*` allows all."""
    if "*" in settings.allowed_hosts:
        log.warning("--allowed-host * turns the guard against DNS rebinding off")
    hosts = {host_name(host) or host.lower() for host in settings.allowed_hosts if host != "*"}
    replacing = [origin for origin in settings.cors_origins if not origin.startswith("+")]
    return Guard(
        keys=KeyRing(settings.api_keys),
        hosts=frozenset(hosts | set(address.host_names)),
        any_host="*" in settings.allowed_hosts,
        origins=frozenset(origin.lstrip("+").rstrip("/") for origin in settings.cors_origins),
        any_origin=any(origin.lstrip("+") == "*" for origin in settings.cors_origins),
        local_origins=not replacing,
    )


def is_from_browser(head: RequestHead) -> bool:
    """Whether headers that only browsers send, and no page can leave out, are there."""
    return any(name == "origin" or name.startswith("sec-fetch-") for name, _ in head.headers)


def _is_cross_site(head: RequestHead) -> bool:
    return (head.header("sec-fetch-site") or "").strip().lower() == "cross-site"


def host_name(host: str) -> str | None:
    """The name in a Host header: lower case, without port, brackets and a final dot; None when it is malformed."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^\s\[\]:/@]+))(?::\d{1,5})?", host.strip())
    if match is None:
        return None
    return (match[1] or match[2]).lower().rstrip(".")


def _wanted_headers(head: RequestHead) -> str:
    """Headers a page may send: those it asks for, where they are plain names, beside our own."""
    asked = (head.header("access-control-request-headers") or "").lower().split(",")
    ours = ALLOWED_HEADERS.split(", ")
    extra = [name.strip() for name in asked[:32] if re.fullmatch(r"[a-z0-9-]{1,64}", name.strip())]
    return ", ".join(dict.fromkeys([*ours, *extra]))
