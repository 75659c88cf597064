"""`POST /v1/systemone`: a decision instead of a text. Shapes only; the work is `decide.py`.

What is wrong with a request is 422 and told twice: as the envelope all routes have, with a dotted `param`, and as
`detail`, which names every fault with its place.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from phobos.chat.events import Scores
from phobos.decide import (
    NOUL_LABELS,
    Answer,
    Decision,
    Kind,
    Question,
    describe_levels,
    plan_decision,
)
from phobos.http.generation import Generations
from phobos.http.protocols.fields import sort_fields
from phobos.http.reply_headers import reply_headers
from phobos.http.transport.wire import Response, bounded, json_response, quoted

MAX_QUESTIONS = 64
MAX_OPTIONS = 255
MAX_FAULTS = 64

_NAMES = frozenset(
    {"state", "questions", "model", "normalize", "prefix", "pin_state", "cache_slot", "entropy", "cache_prompt"}
)
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Asked:
    """A parsed request."""

    decision: Decision
    model: str | None
    with_entropy: bool
    pin_state: bool


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a request."""

    place: Place
    message: str


# --- requests -------------------------------------------------------------------------------------------------------


class _Faults:
    """Collects what is wrong."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def add(self, place: Place, message: str) -> None:
        """Note a fault."""
        if len(self.found) < MAX_FAULTS:
            self.found.append(Fault(place, message))


def parse_decision(values: dict[str, Any], request_id: str) -> Asked | tuple[Fault, ...]:
    """The fields that are present, as a decision, or what is wrong with them."""
    faults = _Faults()
    state = values.get("state")
    if state is None:
        faults.add(("state",), "state is required: send text, an object or a list")
    elif not isinstance(state, str | dict | list):
        faults.add(("state",), "state must be text, an object or a list")
    questions = tuple(_parse_questions(values.get("questions"), faults))
    normalize = values.get("normalize", "sum")
    if normalize not in ("sum", "mean"):
        faults.add(("normalize",), "normalize must be sum or mean")
    for name in ("prefix", "model"):
        if not isinstance(values.get(name, ""), str):
            faults.add((name,), f"{name} must be a string")
    for name in ("pin_state", "entropy", "cache_prompt"):
        if not isinstance(values.get(name, False), bool):
            faults.add((name,), f"{name} must be true or false")
    slot = values.get("cache_slot")
    if slot is not None and (not isinstance(slot, int) or isinstance(slot, bool) or slot < 0):
        faults.add(("cache_slot",), "cache_slot must be a number of a slot, from 0")
    if faults.found:
        return tuple(faults.found)
    decision = Decision(
        request_id,
        _as_text(state),
        questions,
        prefix=values.get("prefix"),
        normalize=normalize,
        cache_slot=slot,
        cache_prompt=values.get("cache_prompt", True),
    )
    return Asked(decision, values.get("model"), values.get("entropy", False), values.get("pin_state", False))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_questions(value: Any, faults: _Faults) -> Iterator[Question]:
    if not isinstance(value, dict):
        reason = "is required: send an object" if value is None else "must be an object"
        faults.add(("questions",), f"questions {reason} of questions by their ids")
        return
    if not 1 <= len(value) <= MAX_QUESTIONS:
        faults.add(("questions",), f"questions must hold 1 to {MAX_QUESTIONS} questions, not {len(value)}")
        return
    for name, item in value.items():
        question = _parse_question(name, item, faults)
        if question is not None:
            yield question


def _parse_question(name: str, item: Any, faults: _Faults) -> Question | None:
    place: Place = ("questions", name)
    if not isinstance(item, dict):
        faults.add(place, "a question must be an object with a type")
        return None
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in _CRITERIA:
        found = "is missing" if kind is None else f"{quoted(kind)} is not known"
        faults.add((*place, "type"), f"type {found}: use noul, choice or score")
        return None
    instructions = item.get("instructions")
    if instructions is not None and not isinstance(instructions, str | dict | list):
        faults.add((*place, "instructions"), "instructions must be text, an object or a list")
        return None
    text = _as_text(instructions).strip() if instructions else ""
    options = _CRITERIA[kind](item.get("criteria"), (*place, "criteria"), faults)
    return None if options is None else Question(name, kind, text or None, *options)


_Options = tuple[tuple[str, ...], tuple[str | None, ...]]


def _parse_noul(value: Any, place: Place, faults: _Faults) -> _Options | None:
    if value is None:
        return NOUL_LABELS, (None, None)
    if not isinstance(value, dict):
        faults.add(place, "criteria of noul must be an object with true and false")
        return None
    unknown = next((key for key in value if key not in ("true", "false")), None)
    if unknown is not None:
        faults.add((*place, unknown), "criteria of noul may hold true and false only")
        return None
    if not _are_texts(value.items(), place, faults):
        return None
    return NOUL_LABELS, (value.get("true"), value.get("false"))


def _parse_choice(value: Any, place: Place, faults: _Faults) -> _Options | None:
    if not isinstance(value, dict):
        faults.add(place, "criteria of choice must be an object of labels")
        return None
    if not 1 <= len(value) <= MAX_OPTIONS:
        faults.add(place, f"criteria must hold 1 to {MAX_OPTIONS} labels, not {len(value)}")
        return None
    if any(not label.strip() for label in value):
        faults.add(place, "criteria holds a blank label")
        return None
    return (tuple(value), tuple(value.values())) if _are_texts(value.items(), place, faults) else None


def _parse_score(value: Any, place: Place, faults: _Faults) -> _Options | None:
    if not isinstance(value, list):
        faults.add(place, "criteria of score must be a list of levels")
        return None
    if not 1 <= len(value) <= MAX_OPTIONS:
        faults.add(place, f"criteria must hold 1 to {MAX_OPTIONS} levels, not {len(value)}")
        return None
    if not _are_texts(enumerate(value), place, faults):
        return None
    return tuple(str(index) for index in range(len(value))), tuple(value)


def _are_texts(items: Any, place: Place, faults: _Faults) -> bool:
    wrong = [key for key, text in items if text is not None and not isinstance(text, str)]
    for key in wrong:
        faults.add((*place, key), "a description must be text or null")
    return not wrong


_CRITERIA: dict[Kind, Callable[[Any, Place, _Faults], _Options | None]] = {
    "noul": _parse_noul,
    "choice": _parse_choice,
    "score": _parse_score,
}


# --- replies --------------------------------------------------------------------------------------------------------


def refuse(faults: tuple[Fault, ...]) -> Response:
    """422, with the first fault in the envelope and all of them in `detail`."""
    first = faults[0]
    param = ".".join(str(part) for part in first.place)
    error = {
        "message": bounded(f"{param}: {first.message}"),
        "type": "invalid_request_error",
        "param": bounded(param, 128),
        "code": None,
    }
    detail = [
        {
            "loc": ["body", *(bounded(part, 64) if isinstance(part, str) else part for part in fault.place)],
            "msg": bounded(fault.message),
            "type": "value_error",
        }
        for fault in faults
    ]
    return json_response({"error": error, "detail": detail}, 422)


def describe_answer(answer: Answer, *, with_entropy: bool) -> dict[str, Any]:
    """One answer's body; numbers have six decimals, and a distribution's add up to 1."""
    question = answer.question
    shares = dict(zip(question.labels, round_shares(answer.probabilities), strict=True))
    body: dict[str, Any] = {"type": question.kind}
    if question.kind == "noul":
        body["noul"] = round(answer.probabilities[0], 6)
    elif question.kind == "choice":
        body |= {"choice": question.labels[answer.best], "probabilities": shares}
    else:
        legend = dict(zip(question.labels, describe_levels(question), strict=True))
        body |= {"score": round(answer.score, 6), "legend": legend, "probabilities": shares}
    if question.kind != "noul":
        body["confidence"] = round(answer.confidence, 6)
    if with_entropy:
        body["entropy"] = round(answer.entropy, 6)
    return body


def round_shares(shares: tuple[float, ...]) -> list[float]:
    """Shares of 1 to six decimals that add up to 1: what rounding down leaves goes to the largest remainders."""
    scaled = [share * 1e6 for share in shares]
    floors = [math.floor(value) for value in scaled]
    n_left = 1_000_000 - sum(floors)
    by_remainder = sorted(range(len(shares)), key=lambda i: floors[i] - scaled[i])
    for index in by_remainder[: max(0, n_left)]:
        floors[index] += 1
    return [floor / 1e6 for floor in floors]


async def answer(
    generations: Generations,
    body: dict[str, Any],
    request_id: str,
    note_ignored: Callable[[tuple[str, ...]], None],
) -> Response:
    """The whole of one request. Raises `RequestError` for what is no matter of this contract (queue, context)."""
    fields = sort_fields(body, _NAMES, strict=generations.settings.strict_fields)
    note_ignored(fields.unknown)
    asked = parse_decision(fields.values, request_id)
    if not isinstance(asked, Asked):
        return refuse(asked)
    decision = asked.decision
    async with generations.admitted(1, decision.cache_slot) as (run, engine):
        model = engine.model
        if decision.cache_slot is not None and decision.cache_slot >= model.n_slots:
            return refuse((Fault(("cache_slot",), f"cache_slot must be below {model.n_slots}, the number of slots"),))
        if asked.pin_state and not model.settings.prefix_cache:
            return refuse((Fault(("pin_state",), "nothing can be kept: the server runs with --no-prefix-cache"),))
        plan = await generations.prepare(plan_decision, decision, model.tokenizer, model.n_ctx)
        scores = await generations.read_all(run, engine, plan.requests(), plan.n_requests, Scores)
        answers = plan.answer(scores)
        reply = {
            "id": "dec-" + secrets.token_hex(12),
            "model": asked.model or generations.model_name(model),
            "provider": "phobos",
            "answers": {a.question.id: describe_answer(a, with_entropy=asked.with_entropy) for a in answers},
            "usage": {"input_tokens": plan.n_input, "output_tokens": plan.n_output, "cost": 0},
        }
        return json_response(reply, headers=reply_headers(run.place.queue_wait_s, fields.unknown))
