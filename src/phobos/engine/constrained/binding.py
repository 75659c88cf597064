"""Holds one answer to its grammar: which tokens may come next.

Nothing is bound while the model thinks, or, where only calls are bound, before one opens; then there is no mask and no
cost. A mask is computed by the grammars' own thread while the pass runs that gives the logits it is for. Where a
grammar leaves one text only, the token is the one that the tokenizer would choose for it, so that a call renders back
to the tokens the model wrote.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from phobos.chat.dialects.dialect import Opening
from phobos.chat.dialects.scanner import Scanner
from phobos.engine.constrained.closing import RESERVE, Ending, JsonState
from phobos.engine.constrained.grammar import Grammars, Plan
from phobos.errors import RequestError, UnavailableError
from phobos.kernels.backend import IntArray

log = logging.getLogger(__name__)


class Binding:
    """The constraint of one sequence, used by the engine thread. `scanner` is the same sequence's.

    `plan` may be None where only the length of the thinking block is bound, by `thinking_budget` tokens.
    """

    def __init__(
        self, grammars: Grammars, plan: Plan | None, scanner: Scanner | None, *, thinking_budget: int | None = None
    ) -> None:
        self._grammars = grammars
        self._plan = plan
        self._scanner = scanner
        self._budget = thinking_budget
        self._n_thoughts = 0
        self._n_allowed: int | None = None
        self._n_chosen = 0
        self._json = JsonState()
        self._ending: Ending | None = None
        self.is_cut = False
        self._thought = False
        self._matcher: Any = None
        self._opening: Opening | None = None  # the call being bound, or found not to be one
        self._n_calls = 0
        self._forced: deque[int] = deque()
        self._waiting: Future[IntArray | None] | None = None
        self._is_prepared = False
        self._fixed: IntArray | None = None

    # Each turn: prepare, mask, accept

    def allow(self, n_tokens: int) -> None:
        """See `Constraint`."""
        self._n_allowed = n_tokens

    def prepare(self) -> None:
        """Begin with the mask of the next token, all tokens before it being known."""
        if self._is_prepared:
            return
        self._is_prepared = True
        self._waiting, self._fixed = None, None
        task = self._next_task()
        if task is not None:
            self._waiting = self._grammars.pool.submit(task)

    def mask(self) -> IntArray | None:
        """See `Constraint`."""
        self.prepare()
        self._is_prepared = False
        return self._fixed if self._waiting is None else self._waiting.result()

    def extend(self, token: int) -> int:
        """See `Constraint`. Tokenizers join what a model writes with what its grammar forces next; so does this, that
        the answer has the tokens which its text has in a later prompt."""
        matcher, words = self._matcher, self._grammars.vocabulary
        if matcher is None or self._forced or token in words.end_ids or not matcher.consume_token(token):
            return token
        text = b"" if matcher.is_accepting() else matcher.compute_ff_bytes()
        matcher.rollback(1)
        piece = words.piece(token)
        if not text or not piece:
            return token
        try:
            joined = words.encode((piece + text).decode())[0]
        except (UnicodeDecodeError, IndexError):
            return token
        longer = words.piece(joined)
        follows = len(longer) > len(piece) and (piece + text).startswith(longer)
        return joined if follows and matcher.validate_tokens([joined]) == 1 else token

    def accept(self, token: int) -> None:
        """See `Constraint`."""
        self._is_prepared = False
        self._n_chosen += 1
        if self._scanner is not None and self._scanner.in_reasoning:
            self._n_thoughts += 1
        if self._forced:
            self._forced.popleft()
        elif self._matcher is not None:
            self._matcher.consume_token(token)
            self._json.push(self._grammars.vocabulary.piece(token))
            if self._ending is not None:
                self._ending.accept(token)

    def foresee(self) -> Sequence[int]:
        """See `Constraint`."""
        if self._forced:
            return tuple(self._forced)
        matcher = self._matcher
        return () if matcher is None or matcher.is_accepting() else matcher.compute_ff_tokens()

    def count_allowed(self, guess: Sequence[int]) -> int:
        """See `Constraint`."""
        if self._forced:
            return next((i for i, (a, b) in enumerate(zip(self._forced, guess, strict=False)) if a != b), len(guess))
        matcher = self._matcher
        return len(guess) if matcher is None else matcher.validate_tokens(list(guess))

    def _next_task(self) -> Callable[[], IntArray | None] | None:
        """What has to be computed; else `_fixed` is the mask."""
        scanner, plan = self._scanner, self._plan
        if self._forced:
            self._fixed = self._only((self._forced[0],))
            return None
        if scanner is not None and scanner.in_reasoning:
            self._thought, self._matcher = True, None
            self._bind_thoughts()
            return None
        if plan is None:
            return None
        if plan.whole:
            if self._matcher is None:
                return functools.partial(self._begin_answer, plan)
            return self._compute_last if self._has_called_enough(scanner) else self._compute
        return self._next_call_task(plan, scanner)

    def _bind_thoughts(self) -> None:
        """Close the block once it has had its tokens; and where an answer must follow it, do not let it be the end, nor
        take the tokens which that needs."""
        vocabulary = self._grammars.vocabulary
        is_late = self._is_late()
        if is_late or (self._budget is not None and self._n_thoughts >= self._budget):
            self._budget = None
            self.is_cut |= is_late
            self._forced.extend(vocabulary.encode(self._grammars.dialect.reasoning.closing, special=True))
            self._fixed = self._only((self._forced[0],))
        elif self._plan is not None and self._plan.whole:
            self._fixed = self._grammars.all_but_ends

    def _is_late(self) -> bool:
        """Whether the answer that must follow the thoughts needs all tokens that are left."""
        plan, n_allowed = self._plan, self._n_allowed
        if plan is None or not plan.whole or n_allowed is None:
            return False
        least = plan.n_least + RESERVE
        return n_allowed - self._n_chosen <= max(least, min(least + plan.n_least, n_allowed // 2))

    def _has_called_enough(self, scanner: Scanner | None) -> bool:
        """Whether no further call should begin: the last one said what one before it did, or there may not be room for
        another, which would be cut off."""
        calls = scanner.calls if scanner is not None else []
        if not calls:
            return False
        if calls[-1] in calls[:-1]:
            return True
        needed = 2 * self._n_chosen / len(calls)
        return self._n_allowed is not None and self._n_allowed - self._n_chosen < needed

    def _next_call_task(self, plan: Plan, scanner: Scanner | None) -> Callable[[], IntArray | None] | None:
        """Where only calls are bound: the call at hand, or the end behind the last that may be."""
        if self._matcher is not None and (scanner is None or scanner.opening is not self._opening):
            self._matcher = None
            self._n_calls += 1
            if scanner is not None:
                scanner.is_certain = False
        if self._matcher is not None:
            return self._compute
        if plan.n_calls is not None and self._n_calls >= plan.n_calls:
            self._fixed = self._only(self._grammars.vocabulary.end_ids)
            return None
        if scanner is None or scanner.opening is None or scanner.opening is self._opening:
            return None
        self._opening = scanner.opening
        return functools.partial(self._begin_call, plan, scanner.opening, scanner.text_from(scanner.opening.position))

    # In the grammars' thread

    def _begin_answer(self, plan: Plan) -> IntArray | None:
        self._json = JsonState()
        self._ending = Ending(self._grammars, plan.closers, plan.n_names, plan.n_least)
        matcher = (plan.after if self._thought else plan.first).deep_copy()
        written = ""
        if self._scanner is not None and self._thought:
            written = self._scanner.text_from(self._scanner.answer_from).lstrip()
        if not self._follows(matcher, written):
            raise UnavailableError("the answer left its format behind the thinking block; try again")
        self._matcher = matcher
        if self._scanner is not None:
            self._scanner.is_certain = plan.must_call
        return self._compute()

    def _begin_call(self, plan: Plan, opening: Opening, written: str) -> IntArray | None:
        """Bind the call that opened, unless what was written with the opener cannot be one."""
        self._json = JsonState()
        self._ending = Ending(self._grammars, plan.closers, plan.n_names, plan.n_least)
        matcher = self._grammars.open_call(plan, opening)
        if not self._follows(matcher, written):
            return None
        self._matcher = matcher
        if self._scanner is not None:
            self._scanner.is_certain = True
        return self._compute()

    def _follows(self, matcher: Any, written: str) -> bool:
        """Take in text that was written before the grammar began."""
        if not written:
            return True
        self._json.push(written.encode())
        return bool(matcher.consume_tokens(self._grammars.library.tokenize_str(written)))

    def _compute(self) -> IntArray:
        """The mask of the grammar's next token."""
        matcher = self._matcher
        mask = self._grammars.compute_mask(matcher)
        if matcher.is_error():
            reason = matcher.get_error().splitlines()[0]
            log.warning("a grammar could not be followed: %s", reason)
            param = "tools" if self._plan is not None and self._plan.tools else "response_format"
            raise RequestError(f"{param} asks for a format too large to follow: make it simpler", param=param)
        # What the library calls forced is what follows if anything does: the end is not counted among it.
        if not matcher.is_accepting():
            if markers := self._markers_begun():
                return self._steer(self._only(markers))
            forced = matcher.compute_ff_tokens() or self._forced_marker()
            if forced and _allows(mask, forced[0]):
                return self._only(forced[:1])
        return self._steer(mask)

    def _steer(self, mask: IntArray) -> IntArray:
        """Make for the end of an answer whose tokens run out."""
        if self._ending is None or self._n_allowed is None:
            return mask
        ends = ~self._grammars.all_but_ends
        n_left = self._n_allowed - self._n_chosen
        found = self._ending.steer(mask, self._matcher, self._json, ends, n_left=n_left, n_allowed=self._n_allowed)
        steered = self._only((found,)) if isinstance(found, int) else found
        self.is_cut |= bool((steered != mask).any()) and not bool((steered & ends).any())
        return steered

    def _markers_begun(self) -> list[int]:
        """Several markers of one beginning, where one of them must come next: what is forced is then less than a token
        of any of them, and the library would have it spelt out."""
        text = self._matcher.compute_ff_bytes()
        if not text:
            return []
        words = self._grammars
        begun = [i for i in words.marker_ids if len(words.piece(i)) > len(text) and words.piece(i).startswith(text)]
        return [token for token in begun if self._matcher.validate_tokens([token]) == 1]

    def _forced_marker(self) -> list[int]:
        """The marker that must come next, if it is a token of its own, which nothing behind it can change."""
        text = self._matcher.compute_ff_bytes()
        tokens = self._grammars.encode(text) if text else []
        return tokens[:1] if tokens and tokens[0] in self._grammars.marker_ids else []

    def _compute_last(self) -> IntArray:
        """The mask where the answer is to end as soon as it may."""
        mask = self._compute()
        ends = mask & ~self._grammars.all_but_ends
        if ends.any():
            return ends
        # No token may run on from the end of this call into another one.
        text = self._matcher.compute_ff_bytes()
        tokens = self._grammars.encode(text) if text else []
        return self._only(tokens[:1]) if tokens and _allows(mask, tokens[0]) else mask

    def _only(self, tokens: Iterable[int]) -> IntArray:
        return self._grammars.mask_of(tokens)


def _allows(mask: IntArray, token: int) -> bool:
    """Whether a token's bit is set."""
    return bool(mask[token >> 5] >> (token & 31) & 1)
