"""Grammars of answers: from a request to what may be written, token by token. The home of llguidance.

A `Grammars` belongs to one model; any thread may use it. Grammars are compiled once and kept, the most recently used
of them; a sequence works on a copy. What cannot be enforced is a `RequestError` that says why. The library's view of
the vocabulary takes seconds to build: `warm` begins with it in the background, else the first request waits for it.

The text that a grammar speaks of is the text a dialect's scanner sees: control tokens that the dialect uses as markers
are spelled out in it, all others may not be chosen but to end the answer.
"""

from __future__ import annotations

import functools
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Dialect, Opening
from phobos.chat.messages import GenerationRequest, OutputFormat, ToolSpec
from phobos.chat.schemas import Schema
from phobos.engine.constrained.binding_schemas import Bound, bind_schemas, loosen
from phobos.engine.constrained.closing import Closers, JsonState, TokenClasses, classify, count_names, find_end
from phobos.errors import RequestError
from phobos.kernels.backend import IntArray

KEPT = 64  # compiled grammars


class Vocabulary(Protocol):
    """What the grammars need of a tokenizer."""

    n_vocab: int
    bos_id: int | None
    end_ids: frozenset[int]
    control_ids: frozenset[int]

    def encode(self, text: str, *, special: bool = False) -> list[int]: ...
    def piece(self, token_id: int) -> bytes: ...
    def spelling(self, token_id: int) -> str: ...


def shown_ids(vocabulary: Vocabulary, dialect: Dialect) -> frozenset[int]:
    """The control tokens that a dialect uses as markers; those that end the answer never show."""
    text = dialect.marker_text
    return frozenset(i for i in vocabulary.control_ids - vocabulary.end_ids if vocabulary.spelling(i) in text)


@dataclass(frozen=True)
class Plan:
    """What binds the answers of a request.

    `whole`: the grammar covers all of the answer, with `first` from its first character and `after` behind a thinking
    block. Otherwise only calls are bound, from where they open, and `n_calls` says how many there may be.

    `closers`, `n_names` and `n_least` say how an answer is brought to its end: see `closing.Ending`. `left_open` are
    the places of schemas that no grammar holds.
    """

    whole: bool
    must_call: bool = False
    first: Any = None
    after: Any = None
    n_calls: int | None = None
    closers: Closers = field(default_factory=Closers)
    n_names: int = 0
    n_least: int = 0
    tools: tuple[ToolSpec, ...] = ()
    left_open: tuple[str, ...] = ()
    opened: dict[tuple[str, str | None], Any] = field(default_factory=dict, compare=False)


class Grammars:
    """See the module."""

    def __init__(self, vocabulary: Vocabulary, dialect: Dialect) -> None:
        self.dialect = dialect
        self.vocabulary = vocabulary
        self.shown_ids = shown_ids(vocabulary, dialect)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="phobos-grammar")
        self.n_words = -(-vocabulary.n_vocab // 32)
        self.all_but_ends = ~self.mask_of(vocabulary.end_ids)
        self.marker_ids = self._find_markers()
        self._lock = threading.Lock()
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._library: Future[Any] | None = None

    @functools.cached_property
    def classes(self) -> TokenClasses:
        """What the tokens do to JSON."""
        return classify([self.vocabulary.piece(i) for i in range(self.vocabulary.n_vocab)], self.mask_of)

    def _find_markers(self) -> frozenset[int]:
        """The dialect's markers that are tokens of their own, whatever stands beside them."""
        found = set()
        for word in self.dialect.marker_text.split():
            alone, beside = self.vocabulary.encode(word), self.vocabulary.encode(f"a{word}a")
            if len(alone) == 1 and len(word) > 1 and alone[0] in beside:
                found.add(alone[0])
        return frozenset(found)

    def _build(self) -> Any:
        """The library's view of the vocabulary."""
        import llguidance

        _ = self.classes  # made beside the rest, in the background
        wrapper = llguidance.TokenizerWrapper(_Words(self.vocabulary, self.shown_ids))
        ends = sorted(self.vocabulary.end_ids)
        return llguidance.LLTokenizer(wrapper, eos_token=ends)

    def mask_of(self, tokens: Iterable[int]) -> IntArray:
        """The mask of exactly these tokens."""
        mask = np.zeros(self.n_words, np.uint32)
        for token in tokens:
            mask[token >> 5] |= np.uint32(1 << (token & 31))
        return mask.view(np.int32)

    @property
    def library(self) -> Any:
        """The library's view of the vocabulary; waits until it is there."""
        return self.warm().result()

    def encode(self, text: bytes) -> list[int]:
        """Text that a grammar forces, as the tokenizer writes it."""
        return self.vocabulary.encode(text.decode("utf-8", "ignore"))

    def warm(self) -> Future[Any]:
        """Begin to build the library's view of the vocabulary, if that was not done."""
        with self._lock:
            if self._library is None:
                self._library = self.pool.submit(self._build)
            return self._library

    def plan(self, request: GenerationRequest) -> Plan | None:
        """What binds this request's answers; None where they are free. Raises `RequestError`."""
        tools = offered_tools(request)
        must_call = bool(tools) and request.tool_choice.kind in ("required", "function")
        if not tools and request.output.kind == "text":
            return None
        thinks = request.thinking or request.prefill_thinking is not None or self.dialect.thinks_unasked
        key = _key(request, tools, thinks)
        with self._lock:
            if (kept := self._plans.get(key)) is not None:
                self._plans.move_to_end(key)
                return kept
        bound = bind_schemas(tools, request.output, is_held, is_flat=not self.dialect.calls.writes_json)
        try:
            plan = self._make_plan(request, bound, must_call, thinks)
        except RequestError:
            looser = self._loosen(bound, request.output)
            if looser == bound:
                raise
            plan = self._make_plan(request, looser, must_call, thinks)
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > KEPT:
                self._plans.popitem(last=False)
        return plan

    def open_call(self, plan: Plan, opening: Opening) -> Any:
        """A matcher for what may follow an opening."""
        key = (opening.opener, opening.name)
        found = plan.opened.get(key)
        if found is None:
            rules = self.dialect.calls.grammar(plan.tools, parallel=plan.n_calls is None, opening=opening)
            found = plan.opened[key] = self._compile(f"start: calls\n{rules}", "tools")
        return found.deep_copy()

    def _make_plan(self, request: GenerationRequest, bound: Bound, must_call: bool, thinks: bool) -> Plan:
        if must_call or request.output.kind != "text":
            return self._plan_whole(request, bound, must_call, thinks)
        return self._plan_calls(request, bound)

    def _loosen(self, bound: Bound, output: OutputFormat) -> Bound:
        """What binds less the schemas that make no grammar after all, which are left open. Raises `RequestError` for
        one that is strict."""
        tools, schema, left_open = list(bound.tools), bound.schema, list(bound.left_open)
        for i, tool in enumerate(tools):
            rules = self.dialect.calls.grammar((tool,), parallel=False, opening=None)
            if not self._compiles(f"start: calls\n{rules}"):
                tools[i] = loosen(tool)
                left_open.append(f"tools.{tool.name}.parameters")
        if schema is not None and not output.strict and not self._compiles(f"start: {lark.json_rule(schema)}"):
            schema = {}
            left_open.append("response_format")
        return Bound(tuple(tools), schema, tuple(left_open))

    def _compiles(self, text: str) -> bool:
        try:
            self._compile(text, "tools")
        except RequestError:
            return False
        return True

    def _plan_calls(self, request: GenerationRequest, bound: Bound) -> Plan:
        """Only calls are bound, wherever they open."""
        closers = self._closers(bound.tools, "text")
        least = self._compile_calls(bound.tools, may_call_again(request))
        return Plan(
            whole=False,
            n_calls=None if may_call_again(request) else 1,
            closers=closers,
            n_names=_count_names(bound),
            n_least=self._count_least(least, closers),
            tools=bound.tools,
            left_open=bound.left_open,
        )

    def _plan_whole(self, request: GenerationRequest, bound: Bound, must_call: bool, thinks: bool) -> Plan:
        """A grammar for all of the answer: calls, text of a format, or either."""
        tools = bound.tools
        dialect, bodies, rules = self.dialect, [], []
        user: str | None = None
        if tools:
            bodies.append("called")
            rules.append(f"called: calls {self._trail()}")
            rules.append(dialect.calls.grammar(tools, parallel=may_call_again(request), opening=None))
        if not must_call:
            body, user = _format_body(request.output, bound.schema)
            begin = f"{_maybe(dialect.message_begin)} {lark.literal(dialect.answer_begin)}"
            bodies.append("answer")
            rules.append(f"answer: {begin} {body} {_maybe(dialect.answer_end)}")
        rules.insert(0, f"body: {lark.choice(bodies)}")
        param = "tools" if must_call else "response_format"
        begin = f" | {lark.literal(dialect.reasoning.begin)}" if thinks else ""
        text = "\n".join(rules)
        rest = f"{text}\nSPACE: /[ \\n]{{1,2}}/"
        first = self._compile(f"start: body{begin}\n{rest}", param, user)
        after = self._compile(f"start: SPACE? body\n{rest}", param, user) if thinks else first
        closers = self._closers(tools, "text" if must_call else request.output.kind)
        return Plan(
            whole=True,
            must_call=must_call,
            first=first,
            after=after,
            closers=closers,
            n_names=_count_names(bound),
            n_least=self._count_least(after, closers),
            tools=tools,
            left_open=bound.left_open,
        )

    def _trail(self) -> str:
        """What a model may write behind its last call, as a rule's body: a line break that others have only before a
        further call, and markers that stand for nothing. Forbidden, they would make it call again."""
        markers = f"({lark.choice(list(map(lark.literal, self.dialect.dropped)))})?" if self.dialect.dropped else ""
        return f"SPACE? {markers}"

    def _closers(self, tools: Sequence[ToolSpec], format_kind: str) -> Closers:
        """What ends the parts of an answer of calls, of a format, or of either."""
        calls = self.dialect.calls
        texts = calls.closers(tools) if tools else ()
        if format_kind in ("regex", "grammar") or (tools and not calls.writes_json):
            return Closers((*texts, "}", "]", '"'))
        return Closers(texts, is_json=True)

    def _count_least(self, matcher: Any, closers: Closers) -> int:
        """About how many tokens the shortest answer has."""
        return len(find_end(matcher, JsonState(), self, closers) or ())

    def piece(self, token_id: int) -> bytes:
        """A token's bytes."""
        return self.vocabulary.piece(token_id)

    def compute_mask(self, matcher: Any) -> IntArray:
        """The mask of a grammar's next token."""
        mask = np.zeros(self.n_words, np.int32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask

    def _compile_calls(self, tools: Sequence[ToolSpec], parallel: bool) -> Any:
        rules = self.dialect.calls.grammar(tools, parallel=parallel, opening=None)
        return self._compile(f"start: calls\n{rules}", "tools")

    def _compile(self, text: str, param: str, user: str | None = None) -> Any:
        """A matcher of a grammar. Raises `RequestError`."""
        import llguidance

        library = self.library
        limits = llguidance.LLParserLimits(verbose_errors=False)
        if user is None:
            grammar = llguidance.LLMatcher.grammar_from_lark(text)
        else:
            parts = [{"lark_grammar": text}, {"name": "user", "lark_grammar": user}]
            grammar = json.dumps({"grammars": parts})
        matcher = llguidance.LLMatcher(library, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            # The first mask finds grammars that nothing fits, and warms what all copies share.
            mask = matcher.compute_bitmask()
            if not matcher.is_error() and any(mask):
                return matcher
        raise _refused(param, _reason(matcher.get_error()))


class _Words:
    """The vocabulary as the library wants it."""

    def __init__(self, vocabulary: Vocabulary, shown: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = min(vocabulary.end_ids)
        self.bos_token_id = vocabulary.bos_id
        self.tokens = [vocabulary.piece(i) for i in range(vocabulary.n_vocab)]
        self.special_token_ids = sorted(vocabulary.control_ids - shown)

    def __call__(self, text: bytes | str) -> list[int]:
        return self._vocabulary.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


@functools.lru_cache(4096)
def _is_held_text(schema: str) -> bool:
    import llguidance

    matcher = llguidance.LLMatcher
    return not matcher.validate_grammar(matcher.grammar_from_json_schema(schema))


def is_held(schema: Schema) -> bool:
    """Whether the library can hold an answer to a JSON schema."""
    return _is_held_text(json.dumps(schema, ensure_ascii=False))


def offered_tools(request: GenerationRequest) -> tuple[ToolSpec, ...]:
    """The tools that may be called."""
    choice = request.tool_choice
    if choice.kind == "none":
        return ()
    if choice.kind == "function":
        return tuple(tool for tool in request.tools if tool.name == choice.name)
    if choice.allowed is not None:
        return tuple(tool for tool in request.tools if tool.name in choice.allowed)
    return request.tools


def may_call_again(request: GenerationRequest) -> bool:
    """Whether an answer may have more than one call: a function asked for by name is called once."""
    return request.parallel_tool_calls and request.tool_choice.kind != "function"


def _key(request: GenerationRequest, tools: Sequence[ToolSpec], thinks: bool) -> str:
    """What two requests must share to share a plan."""
    output = request.output
    return json.dumps(
        (
            request.tool_choice.kind,
            request.parallel_tool_calls,
            thinks,
            (output.kind, output.schema, output.pattern, output.strict),
            [(tool.name, tool.parameters, tool.strict, tool.grammar) for tool in tools],
        ),
        ensure_ascii=False,
        default=dict,
    )


def _format_body(output: OutputFormat, schema: Schema | None) -> tuple[str, str | None]:
    """The rule body of an output format, and the user's own grammar where it is one. Raises `RequestError`."""
    param = "response_format"
    if output.kind == "json_object":
        return lark.json_rule({"type": "object"}), None
    if output.kind == "json_schema":
        return lark.json_rule(schema or {}), None
    pattern = output.pattern or ""
    if len(pattern.encode("utf-8", "replace")) > 64 << 10:
        raise RequestError(f"the {output.kind} of {param} is longer than 64 KiB", param=param)
    if output.kind == "regex":
        return lark.pattern(pattern), None
    return "@user", _as_lark(pattern)


def _as_lark(grammar: str) -> str:
    """A grammar in llguidance's Lark; llama.cpp's own notation is translated. Raises `RequestError`."""
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        translated: str = any_to_lark(grammar)
    except Exception as error:
        raise _refused("response_format", str(error)) from error
    return translated


def _count_names(bound: Bound) -> int:
    """See `Plan.n_names`."""
    return max(map(count_names, (bound.schema, *(tool.parameters for tool in bound.tools))))


def _maybe(text: str) -> str:
    return f"{lark.literal(text)}?" if text else ""


def _reason(message: str) -> str:
    """The library's message as the end of a sentence."""
    if not message or message.startswith(("NoExtension", "<state>")):
        return "nothing fits it"
    lines = [line.strip() for line in message.split("<state>")[0].splitlines() if line.strip()]
    last = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    return last[:300].rstrip(".")


def _refused(param: str, reason: str) -> RequestError:
    return RequestError(f"{param} cannot be enforced: {reason}", param=param, details={"reason": reason})
