"""What becomes of an answer's text: the dialect's scanner and the grammar's binding, one of each a sequence.

An `Answers` belongs to one model and plans once a request; any thread may use it. The scanners and bindings that a plan
opens belong to their sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.dialects.scanner import Scanner
from phobos.chat.messages import GenerationRequest, ToolSpec
from phobos.chat.template import ChatTemplate
from phobos.chat.template_fitting import fit_dialect
from phobos.engine.constrained.binding import Binding
from phobos.engine.constrained.grammar import Grammars, Plan, offered_tools
from phobos.gguf.tokenizer import Tokenizer

MAX_BARE_CALLS = 64
N_TAIL = 32  # tokens at a prompt's end in which an open thinking block shows


@dataclass(frozen=True)
class ReadingPlan:
    """Where a chat's answers begin and what may be called in them: the arguments of `Scanner`."""

    tools: tuple[ToolSpec, ...]
    in_reasoning: bool
    begun: bool
    used_ids: frozenset[str]
    max_bare_calls: int


@dataclass(frozen=True)
class AnswerPlan:
    """What reads and binds the answers to one prompt; each choice opens a scanner and a binding of its own.

    `grammar` is None where the text is free, `reading` where the answer is not a chat's.
    """

    grammars: Grammars
    grammar: Plan | None
    thinking_budget: int | None
    reading: ReadingPlan | None

    @property
    def left_open(self) -> tuple[str, ...]:
        """The places of schemas that no grammar holds."""
        return self.grammar.left_open if self.grammar is not None else ()

    def open_scanner(self) -> Scanner | None:
        """What takes reasoning and calls out of one answer."""
        reading = self.reading
        if reading is None:
            return None
        return Scanner(
            self.grammars.dialect,
            reading.tools,
            in_reasoning=reading.in_reasoning,
            begun=reading.begun,
            used_ids=set(reading.used_ids),
            shown_ids=self.grammars.shown_ids,
            max_bare_calls=reading.max_bare_calls,
        )

    def open_binding(self, scanner: Scanner | None) -> Binding | None:
        """What binds the answer that this scanner reads; None where it is free."""
        if self.grammar is None and (self.thinking_budget is None or scanner is None):
            return None
        return Binding(self.grammars, self.grammar, scanner, thinking_budget=self.thinking_budget)


class Answers:
    """See the module. `bare_calls`: an answer that is nothing but calls as JSON is read as such."""

    def __init__(self, tokenizer: Tokenizer, dialect: Dialect, *, bare_calls: bool = True) -> None:
        self.dialect = dialect
        self._bare_calls = bare_calls
        self.grammars = Grammars(tokenizer, dialect)
        self._tokenizer = tokenizer

    def plan(self, request: GenerationRequest, tokens: Sequence[int]) -> AnswerPlan:
        """What reads and binds the answers to these prompt tokens. Raises `RequestError` for what cannot be enforced;
        what can is compiled now."""
        return AnswerPlan(
            self.grammars,
            self.grammars.plan(request),
            thinking_budget=request.thinking_budget,
            reading=self._plan_reading(request, tokens) if request.is_chat else None,
        )

    def _plan_reading(self, request: GenerationRequest, tokens: Sequence[int]) -> ReadingPlan:
        return ReadingPlan(
            offered_tools(request),
            in_reasoning=self._opens_reasoning(request, tokens),
            begun=self._tail(tokens, N_TAIL).endswith(self.dialect.begins_in),
            used_ids=frozenset(call.id for message in request.messages for call in message.tool_calls),
            max_bare_calls=self._count_bare_calls(request),
        )

    def _count_bare_calls(self, request: GenerationRequest) -> int:
        """How many calls a free answer may be in no family's syntax; a bound one is written in the dialect's."""
        is_free = request.tool_choice.kind == "auto" and request.output.kind == "text"
        if not self._bare_calls or not is_free:
            return 0
        return MAX_BARE_CALLS if request.parallel_tool_calls else 1

    def _opens_reasoning(self, request: GenerationRequest, tokens: Sequence[int]) -> bool:
        """Whether the prompt ends inside a thinking block."""
        prefill = request.prefill_thinking or ""
        n_tail = N_TAIL + 2 * len(prefill)
        tail = self._tail(tokens, n_tail)
        begun = tail.removesuffix(prefill) if prefill else tail
        return begun.rstrip().endswith(self.dialect.reasoning.begin)

    def _tail(self, tokens: Sequence[int], n: int) -> str:
        """The end of a prompt as text."""
        return self._tokenizer.decode(tokens[-n:], special=True, continues=True)


def choose_answers(
    template: ChatTemplate | None, tokenizer: Tokenizer, *, bare_calls: bool = True
) -> tuple[Answers, ChatTemplate | None]:
    """The answers of a model with this template, and the template as it is to be used: one whose way of writing calls
    no dialect knows is not shown tools, and they are asked for in the plain dialect's form."""
    if template is None:
        return Answers(tokenizer, PLAIN, bare_calls=bare_calls), None
    dialect, template = fit_dialect(template)
    return Answers(tokenizer, dialect, bare_calls=bare_calls), template
