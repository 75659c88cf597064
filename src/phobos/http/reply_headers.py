"""What a reply tells in its headers beside the body: the wait in the queue, fields that were ignored."""

from __future__ import annotations

import re

from phobos.http.transport.wire import Headers

MAX_NAMES_REPORTED = 8
MAX_NAME_BYTES = 64


def list_names(names: tuple[str, ...], *, most: int = MAX_NAMES_REPORTED, n_bytes: int = MAX_NAME_BYTES) -> str:
    """A header's list of fields or places: some of them, each bounded and made safe for a header."""
    safe = [re.sub(r"[^A-Za-z0-9_.$\[\]-]", "?", name)[:n_bytes] for name in names[:most]]
    return ", ".join(safe)


def reply_headers(queue_wait_s: float, ignored: tuple[str, ...], left_open: tuple[str, ...] = ()) -> Headers:
    """What a generation's reply tells in its headers."""
    headers: Headers = (("x-phobos-queue-wait-ms", str(round(queue_wait_s * 1000))),)
    if ignored:
        headers = (*headers, ("x-phobos-ignored-fields", list_names(ignored)))
    if left_open:
        headers = (*headers, ("x-phobos-unenforced", list_names(left_open, most=32, n_bytes=160)))
    return headers
