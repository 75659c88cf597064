"""API keys: how they are written, and whose a request carries.

A key is given as `KEY` or as `NAME:KEY`; the name is what logs and the dashboard call its owner. (A key that has a
colon of its own is written `:KEY`.) Keys are kept and compared as digests of one length, every one of them for every
request, so that the time a refusal takes tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from phobos.errors import UsageError

MAX_FILE_BYTES = 1 << 20
MAX_KEY_CHARS = 4096
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,31})?:(?P<key>.*)", re.DOTALL)


@dataclass(frozen=True)
class ApiKey:
    """A key and its owner's name, "" where it has none."""

    name: str
    secret: str


def parse_key(text: str) -> ApiKey:
    """Raises `UsageError` for a key that is empty, blank, or no client can send."""
    match = _NAMED.fullmatch(text)
    name, secret = (match["name"] or "", match["key"]) if match else ("", text)
    if not secret.strip():
        raise UsageError(
            f"the API key {f'of {name} ' if name else ''}is empty: give a key, or leave --api-key out "
            "(is a variable of your script not set?)"
        )
    if secret != secret.strip() or not secret.isprintable() or len(secret) > MAX_KEY_CHARS:
        raise UsageError(
            f"an API key has blanks at its ends, characters that cannot be printed or more than {MAX_KEY_CHARS} of "
            "them: choose another"
        )
    return ApiKey(name, secret)


def read_key_file(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; blank lines and lines that begin with # do not count. Raises `UsageError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"cannot read the keys in {path}: {reason}") from error
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path} has more than {MAX_FILE_BYTES >> 20} MiB: name a file with one key a line")
    keys = tuple(line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))
    if not keys:
        raise UsageError(f"{path} holds no key: write one per line")
    return keys


class KeyRing:
    """The keys of one server. Raises `UsageError` for a text that is no key, or for two owners of one key."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._pepper = secrets.token_bytes(16)
        self._digests: dict[bytes, str] = {}
        for number, text in enumerate(dict.fromkeys(texts), 1):
            key = parse_key(text)
            name = key.name or f"key {number}"
            for form in {key.secret, text}:  # a client that was given the whole text sends that
                if self._digests.setdefault(self._digest(form), name) != name:
                    raise UsageError(f"{name} is an API key that another owner has: give each its own")

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, candidates: Iterable[str]) -> str | None:
        """The name of the owner of the key among what a request carries; None where there is none."""
        found = None
        for candidate in candidates:
            if not candidate:
                continue
            digest = self._digest(candidate)
            for known, name in self._digests.items():
                if hmac.compare_digest(digest, known):
                    found = name
        return found

    def _digest(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), key=self._pepper, digest_size=32).digest()
