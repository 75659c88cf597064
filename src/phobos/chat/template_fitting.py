"""Puts a template and a dialect together: whose calls its model writes, and who tells of tools where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from phobos.chat.dialects import DIALECTS, choose_dialect
from phobos.chat.dialects.derived.derivation import derive_dialect
from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.messages import Message, ToolSpec
from phobos.chat.template import ChatTemplate

log = logging.getLogger(__name__)


def fit_dialect(template: ChatTemplate) -> tuple[Dialect, ChatTemplate]:
    """A template's dialect, and the template as it is to be used. Where no known dialect fits, it is learnt from the
    template; where that fails the template is not shown tools, which are asked for in the plain dialect's form. Where
    it has no words for past calls only, they are written as its dialect does; where it has none for definitions only,
    its dialect introduces them."""
    traits, words = template.traits, template.tool_words
    knows_calls = traits.knows_calls and traits.knows_results
    dialect = choose_dialect(template.source, knows_tools=traits.knows_tools, knows_calls=knows_calls)
    traits = replace(traits, named_ids=traits.named_ids or dialect.named_ids)
    if dialect.introduction and not traits.knows_tools:
        introduced = replace(words, introduction=dialect.introduction, only_introduce=True)
        return dialect, template.fitted(dialect, traits=traits, words=introduced)
    if dialect is PLAIN and traits.knows_tools:
        derived = _derive(template) if traits.knows_calls else None
        if derived is None:
            return dialect, template.fitted(dialect, traits=replace(traits, knows_tools=False, knows_calls=False))
        return derived, template.fitted(derived)
    write = getattr(dialect.calls, "write", None)
    if traits.knows_calls or not traits.knows_tools or write is None:
        return dialect, template.fitted(dialect, traits=traits)
    markers = filter(None, dialect.calls.markers)
    return dialect, template.fitted(dialect, traits=traits, words=replace(words, write_calls=write), markers=markers)


def _derive(template: ChatTemplate) -> Dialect | None:
    """A dialect learnt from the template, or None: no template may keep its model from being loaded."""

    def render(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
        return template.probe(messages, tools, template.traits)

    known = dict.fromkeys(dialect.reasoning for dialect in DIALECTS)
    try:
        return derive_dialect(render, template.source, known)
    except Exception as error:  # whatever a template brings about
        log.warning("how the chat template writes calls could not be learnt (%s): the plain form is used", error)
        return None
