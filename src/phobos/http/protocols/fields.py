"""From a body's bytes to typed fields, in one place for every endpoint.

Order: bytes -> JSON object -> nulls dropped (null equals absent) -> names sorted into known, bookkeeping and unknown
-> types and ranges checked by msgspec. Every refusal is a `RequestError` whose `param` names the field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from phobos.errors import RequestError
from phobos.http.reply_headers import MAX_NAME_BYTES, MAX_NAMES_REPORTED
from phobos.http.transport.wire import bounded, quoted

MAX_DEPTH = 128

# Fields of the hosted service that have no meaning here.
BOOKKEEPING = frozenset(
    {
        "store",
        "metadata",
        "service_tier",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "verbosity",
        "web_search_options",
        "moderation",
    }
)

Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")


@dataclass(frozen=True)
class Fields:
    """The fields of a body that are read, and the names of those that are not."""

    values: dict[str, Any]
    unknown: tuple[str, ...]


def _read_number(text: str) -> float | int:
    """A number with a point or exponent. `1e8` and `2.0` are integers where JSON Schema is concerned, so here too."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("number out of range")
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value


_DECODER = msgspec.json.Decoder(float_hook=_read_number)


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object a body holds. Raises `RequestError` with code `invalid_json`."""
    if body.startswith(b"\xef\xbb\xbf"):
        body = body[3:]
    if not body:
        raise RequestError("the request body is empty: send a JSON object", code="invalid_json")
    try:
        value = _DECODER.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = bounded(str(error).replace("JSON is malformed: ", ""), 160)
        raise RequestError(f"the request body is not valid JSON: {reason}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("the request body must be a JSON object", code="invalid_json")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> RequestError:
    return RequestError(f"the request body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")


def sort_fields(body: dict[str, Any], known: frozenset[str], *, strict: bool) -> Fields:
    """Drop nulls and bookkeeping, set unknown names aside; with `strict` those are refused."""
    present = {name: value for name, value in body.items() if value is not None}
    unknown = sorted(name for name in present if name not in known and name not in BOOKKEEPING)
    if unknown and strict:
        names = ", ".join(quoted(name, MAX_NAME_BYTES) for name in unknown[:MAX_NAMES_REPORTED])
        more = "" if len(unknown) <= MAX_NAMES_REPORTED else f" and {len(unknown) - MAX_NAMES_REPORTED} more"
        raise RequestError(
            f"unknown fields: {names}{more}", code="unknown_parameter", param=bounded(unknown[0], MAX_NAME_BYTES)
        )
    return Fields({name: value for name, value in present.items() if name in known}, tuple(unknown))


def without_nulls(values: dict[str, Any], objects: Collection[str]) -> dict[str, Any]:
    """Null equals absent in these option objects too."""
    return {
        name: {k: v for k, v in value.items() if v is not None}
        if name in objects and isinstance(value, dict)
        else value
        for name, value in values.items()
    }


def convert(values: dict[str, Any], wanted: type[T], *, prefix: str = "") -> T:
    """Check `values` against a msgspec type. Raises `RequestError` naming the field by its path under `prefix`."""
    try:
        return msgspec.convert(values, wanted)
    except (msgspec.ValidationError, OverflowError) as error:
        reason, param = split_reason(str(error), prefix)
        name = param or "the body"
        raise RequestError(f"{name}: {reason}", param=param) from None


_LOCATION = re.compile(r"(?P<reason>.*?)(?: - at `\$?(?P<path>.*)`)?", re.DOTALL)


def split_reason(message: str, prefix: str = "") -> tuple[str, str | None]:
    """msgspec's message as a plain reason and the dotted path of the field."""
    match = _LOCATION.fullmatch(message)
    assert match is not None
    reason = match["reason"].replace("`", "").replace(" | null", "")
    reason = reason[:1].lower() + reason[1:]
    path = (match["path"] or "").replace("[...]", "").lstrip(".")
    missing = re.fullmatch(r"object missing required field (\S+)", reason)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        reason = "this field is required"
    joined = prefix + ("." if prefix and path and not path.startswith("[") else "") + path
    return reason, joined or None
