"""The sampling fields in request bodies: types and ranges from the one table, under each protocol's names."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from phobos.http.protocols.fields import convert
from phobos.sampling_fields import FIELDS, SamplingField


class SamplingReader:
    """Reads the sampling fields of a protocol, given its name for each of `FIELDS`."""

    def __init__(self, names: dict[str, SamplingField]) -> None:
        self._names = names
        declared = [(name, _type_of(field) | None, None) for name, field in names.items()]
        self._struct = msgspec.defstruct("SamplingBody", declared, kw_only=True)

    @property
    def names(self) -> frozenset[str]:
        """What they are called in a body."""
        return frozenset(self._names)

    def read(self, values: dict[str, Any]) -> dict[str, Any]:
        """The fields' values by the table's names, `None` for what is not there. Raises `RequestError`."""
        asked = convert(values, self._struct)
        return {field.name: getattr(asked, name) for name, field in self._names.items()}


def _type_of(field: SamplingField) -> Any:
    least = Meta(gt=field.low) if field.excludes_low else Meta(ge=field.low)
    return Annotated[int if field.whole else float, least, Meta(le=field.high)]


SAMPLING = SamplingReader({field.name: field for field in FIELDS})
LLAMA_SAMPLING = SamplingReader({field.llama_name: field for field in FIELDS})
