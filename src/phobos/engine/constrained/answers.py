"""What becomes of an answer's text: the dialect's scanner and the grammar's binding, one of each a sequence.

An `Answers` belongs to one model; any thread may use it. Its scanners and bindings belong to their sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.dialects.scanner import Scanner
from phobos.chat.messages import GenerationRequest
from phobos.chat.template import ChatTemplate, fit_dialect
from phobos.engine.constrained.binding import Binding
from phobos.engine.constrained.grammar import Grammars, offered_tools
from phobos.gguf.tokenizer import Tokenizer

N_TAIL = 32  # tokens at a prompt's end in which an open thinking block shows


class Answers:
    """See the module."""

    def __init__(self, tokenizer: Tokenizer, dialect: Dialect) -> None:
        self.dialect = dialect
        self.grammars = Grammars(tokenizer, dialect)
        self._tokenizer = tokenizer

    def check(self, request: GenerationRequest) -> None:
        """Refuse what cannot be enforced, with a `RequestError`; what can is compiled now."""
        self.grammars.plan(request)

    def scanner(self, request: GenerationRequest, tokens: Sequence[int]) -> Scanner | None:
        """What takes reasoning and calls out of the answer to these prompt tokens; None where there is no chat."""
        if not request.is_chat:
            return None
        return Scanner(
            self.dialect,
            offered_tools(request),
            in_reasoning=self._opens_reasoning(request, tokens),
            begun=self._tail(tokens, N_TAIL).endswith(self.dialect.begins_in),
            used_ids={call.id for message in request.messages for call in message.tool_calls},
            shown_ids=self.grammars.shown_ids,
        )

    def binding(self, request: GenerationRequest, scanner: Scanner | None) -> Binding | None:
        """What binds the answer; None where it is free. Raises `RequestError`."""
        plan = self.grammars.plan(request)
        if plan is None and (request.thinking_budget is None or scanner is None):
            return None
        return Binding(self.grammars, plan, scanner, thinking_budget=request.thinking_budget)

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


def choose_answers(template: ChatTemplate | None, tokenizer: Tokenizer) -> tuple[Answers, ChatTemplate | None]:
    """The answers of a model with this template, and the template as it is to be used: one whose way of writing calls
    no dialect knows is not shown tools, and they are asked for in the plain dialect's form."""
    if template is None:
        return Answers(tokenizer, PLAIN), None
    dialect, template = fit_dialect(template)
    return Answers(tokenizer, dialect), template
