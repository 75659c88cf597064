"""The tools and the schemas that `binding_check.py` asks real models for."""

from __future__ import annotations

from typing import Any


def _object(**properties: Any) -> dict[str, Any]:
    """An object of these properties; those whose name ends in `_` are optional."""
    return {
        "type": "object",
        "properties": {name.rstrip("_"): schema for name, schema in properties.items()},
        "required": [name for name in properties if not name.endswith("_")],
        "additionalProperties": False,
    }


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
CITY = {"type": "string", "maxLength": 40}

# A tool's name, what it is for, its parameters, and a question.
TOOLS: list[tuple[str, str, dict[str, Any], str]] = [
    ("get_weather", "The weather in a city", _object(city=CITY, days_=INTEGER), "How is the weather in Paris?"),
    (
        "convert_units",
        "Convert a length",
        _object(value=NUMBER, source={"enum": ["m", "ft", "km", "mi"]}, target={"enum": ["m", "ft", "km", "mi"]}),
        "How many feet are 12.5 meters?",
    ),
    ("set_light", "Switch a lamp", _object(room=CITY, on=BOOLEAN, level_=INTEGER), "Turn the kitchen light off."),
    (
        "make_list",
        "Save a shopping list",
        _object(items={"type": "array", "items": CITY, "minItems": 1, "maxItems": 5}),
        "I need milk, eggs and bread.",
    ),
    (
        "book_table",
        "Book a table",
        _object(day={"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"}, people=INTEGER, name_=CITY),
        "A table for four on the second of May 2026, please.",
    ),
    ("no_arguments", "Tell the time", _object(), "What time is it?"),
    (
        "add_contact",
        "Save a person",
        _object(person=_object(first=CITY, last=CITY), phones={"type": "array", "items": CITY, "maxItems": 2}),
        "Save Ada Lovelace, phone 555 0101.",
    ),
    (
        "search",
        "Search documents",
        _object(query=CITY, limit_={"type": "integer", "minimum": 1, "maximum": 50}, exact_=BOOLEAN),
        "Find ten documents about whales.",
    ),
    (
        "plot_point",
        "Draw a point",
        _object(x=NUMBER, y=NUMBER, color={"type": ["string", "null"], "enum": ["red", "green", "blue", None]}),
        "Draw a red point at 3, 4.",
    ),
    (
        "transfer",
        "Send money",
        _object(amount={"type": "number", "minimum": 0}, currency={"const": "EUR"}, note_={**CITY, "minLength": 3}),
        "Send 20 euros with the note lunch.",
    ),
]

_TREE = {
    "$defs": {
        "node": _object(value=INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2})
    },
    "$ref": "#/$defs/node",
}
_CHAIN = {
    "$defs": {"link": _object(name=CITY, next={"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]})},
    "$ref": "#/$defs/link",
}

# A schema and a question that it answers.
SCHEMAS: list[tuple[dict[str, Any], str]] = [
    (_object(answer=INTEGER), "What is 6 times 7?"),
    (_object(name=CITY, age=INTEGER), "Describe a person."),
    (_object(title=CITY, year={"type": "integer", "minimum": 1900, "maximum": 2030}), "Name a film."),
    (_object(color={"enum": ["red", "green", "blue"]}), "What color is the sky?"),
    (_object(ok=BOOLEAN, reason_=CITY), "Is water wet?"),
    (_object(place=_object(lat=NUMBER, lon=NUMBER, name=CITY)), "Where is Rome?"),
    (_object(a=_object(b=_object(c=_object(d=INTEGER)))), "Give me a number, deeply nested."),
    (_object(tags={"type": "array", "items": CITY, "minItems": 2, "maxItems": 4}), "Give tags for a cat picture."),
    ({"type": "array", "items": INTEGER, "minItems": 3, "maxItems": 3}, "Three prime numbers, please."),
    ({"type": "array", "items": _object(x=INTEGER, y=INTEGER), "minItems": 1, "maxItems": 3}, "Give some points."),
    (_object(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}), "Make up a product code."),
    (_object(email={"type": "string", "pattern": "^[a-z]{1,12}@[a-z]{1,12}\\.com$"}), "Make up an email address."),
    (_object(day={"type": "string", "format": "date"}), "When did the first human land on the moon?"),
    ({"anyOf": [_object(error=CITY), _object(value=NUMBER)]}, "What is 1 divided by 0?"),
    (_object(value={"anyOf": [INTEGER, CITY, {"type": "null"}]}), "Say something short."),
    ({"oneOf": [_object(kind={"const": "dog"}), _object(kind={"const": "cat"})]}, "Which is better?"),
    (_TREE, "Draw a small tree of numbers."),
    (_CHAIN, "Name a chain of two friends."),
    (_object(text={"type": "string", "minLength": 5, "maxLength": 30}), "Say hello."),
    (_object(rating={"type": "number", "minimum": 0, "maximum": 5}, stars_={"enum": [1, 2, 3, 4, 5]}), "Rate pizza."),
]
