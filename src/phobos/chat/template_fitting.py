"""Puts a template and a dialect together: whose calls its model writes, and who tells of tools where it cannot."""

from __future__ import annotations

from dataclasses import replace

from phobos.chat.dialects import choose_dialect
from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.template import ChatTemplate


def fit_dialect(template: ChatTemplate) -> tuple[Dialect, ChatTemplate]:
    """A template's dialect, and the template as it is to be used. One whose way of writing calls no dialect knows is
    not shown tools: they are asked for in the plain dialect's form. Where it has no words for past calls only, they
    are written as its dialect does; where it has none for definitions only, its dialect introduces them."""
    traits, words = template.traits, template.tool_words
    knows_calls = traits.knows_calls and traits.knows_results
    dialect = choose_dialect(template.source, knows_tools=traits.knows_tools, knows_calls=knows_calls)
    traits = replace(traits, named_ids=traits.named_ids or dialect.named_ids)
    if dialect.introduction and not traits.knows_tools:
        introduced = replace(words, introduction=dialect.introduction, only_introduce=True)
        return dialect, template.fitted(dialect, traits=traits, words=introduced)
    if dialect is PLAIN and traits.knows_tools:
        return dialect, template.fitted(dialect, traits=replace(traits, knows_tools=False, knows_calls=False))
    write = getattr(dialect.calls, "write", None)
    if traits.knows_calls or not traits.knows_tools or write is None:
        return dialect, template.fitted(dialect, traits=traits)
    markers = filter(None, dialect.calls.markers)
    return dialect, template.fitted(dialect, words=replace(words, write_calls=write), markers=markers)
