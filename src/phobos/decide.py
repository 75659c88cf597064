"""System One: a model reads a context and says how probable each of a closed set of answers is.

Theory. A question's prompt is the state, the question with its options, and a cue; each option is a continuation,
and its weight the sum (or mean) of its tokens' log-probabilities over the full vocabulary; a softmax over the options
gives their probabilities. Options share beginnings, so their tokens form a tree: a row that has read a beginning tells
about all tokens that may follow it. `plan_paths` covers the tree with few paths, and each path is one `ScoreRequest`:
the engine computes what they share (the state above all) once and runs them side by side in its batches. Rows are
bit-exact, so a score read through a shared prefix equals a cold one to the last bit.

`plan_decision` and `DecisionPlan.answer` are pure; `decide` runs them against an engine.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from phobos.chat.events import Event, Failed, Finished, Scores, Sink
from phobos.chat.messages import ScoreRequest
from phobos.errors import ContextLengthError, PhobosError, UnavailableError

Kind = Literal["noul", "choice", "score"]
Tokens = tuple[int, ...]
NOUL_LABELS = ("yes", "no")
WINDOW = 64  # scorings of one decision that the engine has at once


@dataclass(frozen=True)
class Question:
    """A question and its options. `labels` are what answers are named by, `texts` what is said about each option, if
    anything: for `noul` of yes and no, for `score` of each level, whose labels are its number."""

    id: str
    kind: Kind
    instructions: str | None
    labels: tuple[str, ...]
    texts: tuple[str | None, ...]


@dataclass(frozen=True)
class Decision:
    """One request: questions about one state."""

    request_id: str
    state: str
    questions: tuple[Question, ...]
    prefix: str | None = None
    normalize: Literal["sum", "mean"] = "sum"
    cache_slot: int | None = None
    cache_prompt: bool = True


@dataclass(frozen=True)
class Answer:
    """`probabilities` of the question's options, in their order; `best` is the first of the most probable ones.

    `score` is the expected level; `confidence` is 0 for an even spread and 1 for certainty; `entropy` is the
    distribution's, as a share of an even one's.
    """

    question: Question
    probabilities: tuple[float, ...]
    best: int
    confidence: float
    score: float
    entropy: float


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, *, special: bool = False, bos: bool = False, continues: bool = False) -> list[int]: ...


class ScoringEngine(Protocol):
    """What is needed of an engine."""

    def read(self, request: ScoreRequest, sink: Sink, *, queue_wait_s: float = 0.0) -> object: ...


# --- the prompt -----------------------------------------------------------------------------------------------------


def write_context(decision: Decision) -> str:
    """What all questions share."""
    prefix = f"{decision.prefix}\n\n" if decision.prefix else ""
    return f"{prefix}Context:\n{decision.state}\n"


def write_question(question: Question) -> str:
    """The question with its options once, and the answer's cue."""
    lines = ["", f"Question: {question.instructions or _DEFAULTS[question.kind]}"]
    if question.kind == "noul":
        lines += [f"{label}: {text}" for label, text in zip(question.labels, question.texts, strict=True) if text]
        cue = "Answer yes or no:"
    elif question.kind == "choice":
        lines += ["Options:"]
        lines += [
            f"- {label}: {text}" if text else f"- {label}"
            for label, text in zip(question.labels, question.texts, strict=True)
        ]
        cue = "Answer with one option:"
    else:
        lines += ["Levels:"]
        lines += [f"{label}: {text}" for label, text in zip(question.labels, describe_levels(question), strict=True)]
        cue = "Answer with the number of one level:"
    return "\n".join([*lines, cue])


_DEFAULTS: Mapping[Kind, str] = {
    "noul": "Is this so?",
    "choice": "Which option fits the context?",
    "score": "Which level fits the context?",
}


def describe_levels(question: Question) -> tuple[str, ...]:
    """The levels of a score as they are shown."""
    return tuple(text if text is not None else f"level {index}" for index, text in enumerate(question.texts))


# --- the tree of options --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """A beginning of an option, and what is read along it: after its first `depth` tokens, these tokens' chances."""

    tokens: Tokens
    targets: tuple[tuple[int, Tokens], ...]


def plan_paths(options: Iterable[Tokens]) -> tuple[Path, ...]:
    """Paths that read every token of every option once, after every beginning it stands behind; longest first."""
    following: dict[Tokens, list[int]] = {}
    for option in options:
        for depth, token in enumerate(option):
            tokens = following.setdefault(option[:depth], [])
            if token not in tokens:
                tokens.append(token)
    uncovered = dict(following)
    paths = []
    for beginning in sorted(following, key=len, reverse=True):
        if beginning not in uncovered:
            continue
        depths = [depth for depth in range(len(beginning) + 1) if beginning[:depth] in uncovered]
        paths.append(Path(beginning, tuple((depth, tuple(uncovered.pop(beginning[:depth]))) for depth in depths)))
    return tuple(paths)


# --- planning and reading -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reading:
    """A question, its prompt behind the context, and the paths that read its options; none where there is but one."""

    question: Question
    prompt: Tokens
    options: tuple[Tokens, ...]
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class DecisionPlan:
    """What the engine is to be asked, and how its answers are read.

    `n_input` is the longest prompt in tokens, `n_output` the options' tokens.
    """

    decision: Decision
    n_input: int
    n_output: int
    _context: Tokens
    _readings: tuple[_Reading, ...]

    @property
    def n_requests(self) -> int:
        """How many scorings it takes."""
        return sum(len(reading.paths) for reading in self._readings)

    def requests(self) -> Iterator[ScoreRequest]:
        """The scorings, in order, each made when it is asked for: together they may be large."""
        decision = self.decision
        for reading in self._readings:
            prompt = self._context + reading.prompt
            last = len(prompt) - 1
            for path in reading.paths:
                targets = tuple((last + depth, tokens) for depth, tokens in path.targets)
                yield ScoreRequest(
                    decision.request_id,
                    prompt + path.tokens,
                    targets,
                    decision.cache_slot,
                    decision.cache_prompt,
                    len(self._context),
                )

    def answer(self, scores: Sequence[Scores]) -> tuple[Answer, ...]:
        """The answers, from the scores of the requests in their order. Raises `UnavailableError` where the model's
        rows are no distributions."""
        remaining = iter(scores)
        return tuple(self._answer_one(reading, remaining) for reading in self._readings)

    def _answer_one(self, reading: _Reading, scores: Iterator[Scores]) -> Answer:
        if not reading.paths:
            return _make_answer(reading.question, [1.0])
        chances: dict[tuple[Tokens, int], float] = {}
        for path in reading.paths:
            for (depth, tokens), values in zip(path.targets, next(scores).rows, strict=True):
                chances.update(((path.tokens[:depth], t), v) for t, v in zip(tokens, values, strict=True))
        weights = []
        for option in reading.options:
            total = math.fsum(chances[option[:depth], token] for depth, token in enumerate(option))
            weights.append(total / len(option) if self.decision.normalize == "mean" else total)
        if any(math.isnan(weight) for weight in weights):
            raise UnavailableError("the model gave no probabilities: check the model file")
        greatest = max(weights)
        shares = [math.exp(weight - greatest) if greatest > -math.inf else 1.0 for weight in weights]
        total = math.fsum(shares)
        return _make_answer(reading.question, [share / total for share in shares])


def _make_answer(question: Question, probabilities: list[float]) -> Answer:
    n, peak = len(probabilities), max(probabilities)
    entropy = -math.fsum(p * math.log(p) for p in probabilities if p > 0)
    return Answer(
        question,
        tuple(probabilities),
        probabilities.index(peak),
        1.0 if n == 1 else max(0.0, (n * peak - 1) / (n - 1)),
        math.fsum(index * p for index, p in enumerate(probabilities)),
        0.0 if n == 1 else max(0.0, entropy / math.log(n)),
    )


def plan_decision(decision: Decision, tokenizer: Encoder, n_ctx: int) -> DecisionPlan:
    """Tokenize and lay out the work. Raises `ContextLengthError` for a prompt that does not fit."""
    context = tuple(tokenizer.encode(write_context(decision), bos=True))
    readings: list[_Reading] = []
    n_input = n_output = 0
    for question in decision.questions:
        prompt = tuple(tokenizer.encode(write_question(question), continues=True))
        options = tuple(tuple(tokenizer.encode(f" {label}", continues=True)) for label in question.labels)
        n_prompt = len(context) + len(prompt)
        n_needed = n_prompt + max(len(option) for option in options)
        if n_needed > n_ctx:
            error = ContextLengthError(n_needed, n_ctx)
            error.param = "state"
            raise error
        paths = plan_paths(options) if len(options) > 1 else ()
        readings.append(_Reading(question, prompt, options, paths))
        n_input = max(n_input, n_prompt)
        n_output += sum(len(option) for option in options) if paths else 0
    return DecisionPlan(decision, n_input, n_output, context, tuple(readings))


def decide(engine: ScoringEngine, decision: Decision, tokenizer: Encoder, n_ctx: int) -> tuple[Answer, ...]:
    """Ask and wait; for a thread of one's own, not the engine's. Raises what `plan_decision` and the engine raise."""
    plan = plan_decision(decision, tokenizer, n_ctx)
    arrived: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
    waiting = enumerate(plan.requests())
    scores: dict[int, Scores] = {}
    failure: PhobosError | None = None
    n_open = 0

    def submit_next() -> int:
        for index, request in waiting:
            engine.read(request, lambda event, index=index: arrived.put((index, event)))  # type: ignore[misc]
            return 1
        return 0

    for _ in range(WINDOW):
        n_open += submit_next()
    while n_open:
        index, event = arrived.get()
        if isinstance(event, Scores):
            scores[index] = event
        elif isinstance(event, Failed):
            failure = event.error
        if isinstance(event, Finished | Failed):
            n_open += (submit_next() if failure is None else 0) - 1
    if failure is not None:
        raise failure
    return plan.answer([scores[index] for index in range(plan.n_requests)])
