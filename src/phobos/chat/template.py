"""The model's own chat template: from messages to the runs of text that become the prompt.

Rules. The template runs in a sandbox (`template_sandbox.py`). Only its own text becomes control tokens
(`control_text.py`). What a template cannot say is folded into what it can (`conversation.py`); where nothing helps,
the `RequestError` carries the template's own words. BOS stands exactly once where the vocabulary adds one, and exactly
where the template writes it where it does not. A `ChatTemplate` is immutable and may be used by several threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from phobos.chat.control_text import ControlText, texts_of
from phobos.chat.conversation import (
    FOLDS,
    PLAIN_WORDS,
    ToolWords,
    Traits,
    calls_as_text,
    describe_all,
    fold_system,
    name_results,
    results_as_text,
    to_template,
    tool_dict,
    tools_as_text,
)
from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.messages import Message, ToolSpec
from phobos.chat.template_traits import find_traits
from phobos.errors import RequestError
from phobos.gguf.tokenizer import Tokenizer

# Markers that an assistant's own past text keeps, because templates look for them.
ASSISTANT_MARKERS = frozenset(("<think>", "</think>", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>"))


@dataclass(frozen=True)
class Segment:
    """A run of the prompt: plain text, tokenized whole, or the spelling of one token."""

    text: str
    is_control: bool


class ChatTemplate:
    """See the module. `source` is Jinja; `bos_text` and `eos_text` are what the template gets as `bos_token` and
    `eos_token`; `control` are the spellings of the vocabulary's control tokens and `user_defined` those of its
    user-defined ones, of which the ones the template itself writes are guarded like control tokens in what users and
    tools say; `assistant_markers` stay whole in an assistant's past text; `tool_words` put tools into text where the
    template cannot. Raises `FileError` for a source that is no template."""

    def __init__(
        self,
        source: str,
        bos_text: str = "",
        eos_text: str = "",
        *,
        control: Iterable[str] = (),
        user_defined: Iterable[str] = (),
        assistant_markers: frozenset[str] = frozenset(),
        tool_words: ToolWords = PLAIN_WORDS,
        extra_variables: Mapping[str, str] | None = None,
    ) -> None:
        from phobos.chat.template_sandbox import SandboxedTemplate

        source = source.removeprefix("\ufeff")  # of a file made on Windows
        self.source = source
        self.spelled_out = frozenset(text for text in user_defined if text in source)
        self._text = ControlText((*control, *self.spelled_out))
        self._markers = ASSISTANT_MARKERS | assistant_markers
        self._words = tool_words
        self._variables = {"bos_token": bos_text, "eos_token": eos_text, **(extra_variables or {})}
        self._template = SandboxedTemplate(source)
        self.dialect = PLAIN
        self.traits = find_traits(self.probe)

    def fitted(
        self,
        dialect: Dialect,
        *,
        traits: Traits | None = None,
        words: ToolWords | None = None,
        markers: Iterable[str] = (),
    ) -> ChatTemplate:
        """The template as it is to be used with a dialect, and with other traits and words than were found where they
        are given; `markers` too stay whole in an assistant's past text."""
        fitted = copy(self)
        fitted.dialect = dialect
        fitted._words = words or self._words
        fitted._markers = self._markers | {dialect.reasoning.begin, dialect.reasoning.end, *markers}
        fitted.traits = traits or self.traits
        return fitted

    @property
    def tool_words(self) -> ToolWords:
        """What puts tools into text where the template cannot."""
        return self._words

    def probe(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], traits: Traits, *, thinking: bool = False
    ) -> str | None:
        """See `template_traits.Probe`."""
        options = {"add_generation_prompt": True, **thinking_names(thinking)}
        try:
            definitions = [deepcopy(tool_dict(tool)) for tool in tools]  # some templates change them
            return self.render_entries(to_template(messages, traits), definitions, traits, options)
        except RequestError:
            return None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool = False,
        **variables: Any,
    ) -> list[Segment]:
        """The prompt of a conversation; further `variables` go to the template as they are. Raises `RequestError`
        where the template refuses, in its own words."""
        breaker = self._text.choose_breaker(self._texts(messages, tools, variables))
        rendered = self._render_folded(
            messages, tools, breaker, add_generation_prompt, {"enable_thinking": enable_thinking, **variables}
        )
        return [Segment(text, is_control) for text, is_control in self._text.split(rendered, breaker)]

    def render_text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), **options: Any) -> str:
        """The prompt as text; options are those of `render`."""
        return "".join(segment.text for segment in self.render(messages, tools, **options))

    def own_text(self, text: str) -> list[Segment]:
        """Text that counts as the template's own."""
        return [Segment(run, is_control) for run, is_control in self._text.split(text, "")]

    def _texts(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], variables: Mapping[str, Any]
    ) -> Iterator[str]:
        yield self.source
        yield from texts_of(variables)
        for tool in tools:
            yield from texts_of(tool_dict(tool))
        for message in messages:
            yield from filter(None, (message.content, message.reasoning, message.name, message.tool_call_id))
            for call in message.tool_calls:
                yield from (call.id, call.name, call.arguments)

    def _render_folded(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        breaker: str,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Render as the messages are, else as the folds make them."""
        options = {
            "add_generation_prompt": add_generation_prompt,
            **{key: self._text.break_value(value, breaker) for key, value in variables.items()},
        }
        messages, tools = self._write_out(messages, tools)
        bare = [self._text.break_value(tool_dict(tool), breaker) for tool in tools]
        refusal: RequestError | None = None
        for definitions in (bare, [describe_all(definition) for definition in bare]) if bare else (bare,):
            for attempt in _attempts(messages):
                entries = self._break_entries(to_template(attempt, self.traits), breaker)
                try:
                    return self.render_entries(entries, definitions, self.traits, options)
                except RequestError as error:
                    refusal = refusal or error
        raise refusal or RequestError("there are no messages to answer", param="messages")

    def _write_out(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[Sequence[Message], Sequence[ToolSpec]]:
        """What the template has no words for, in text."""
        traits = self.traits
        messages = name_results(messages)
        in_text = bool(tools) and not traits.knows_tools
        apart = in_text and not self._words.only_introduce
        if apart or not traits.knows_calls:
            messages = calls_as_text(messages, self._words)
        if apart or not traits.knows_results:
            messages = results_as_text(messages, self._words)
        if in_text:
            messages, tools = tools_as_text(messages, tools, self._words), ()
        if not traits.knows_system:
            messages = fold_system(messages)
        return messages, tools

    def render_entries(
        self,
        entries: list[dict[str, Any]],
        definitions: list[dict[str, Any]],
        traits: Traits,
        options: Mapping[str, Any],
    ) -> str:
        """Run the template over ready messages and tool definitions. Raises `RequestError`."""
        variables = self._variables | {"documents": None, "messages": entries} | dict(options)
        if definitions:
            variables["tools"] = definitions
        elif traits.no_tools != "missing":
            variables["tools"] = None if traits.no_tools == "none" else []
        if "date_string" in self.source:  # Llama's name for today, with a day of 2024 where it is not told
            variables.setdefault("date_string", datetime.now().astimezone().strftime("%d %b %Y"))
        if "xml_tools" in self.source:  # SmolLM3's name for them
            variables["xml_tools"] = definitions
        if "functions" in self.source and "datetime" in self.source:  # FireFunction's own two variables
            variables |= {
                "functions": json.dumps(definitions, ensure_ascii=False, indent=4),
                "datetime": datetime.now().astimezone().strftime("%b %d %Y %H:%M:%S %Z"),
            }
        return self._template.render(variables)

    def _break_entries(self, entries: list[dict[str, Any]], breaker: str) -> list[dict[str, Any]]:
        return [self._break_entry(entry, breaker) for entry in entries]

    def _break_entry(self, entry: dict[str, Any], breaker: str) -> dict[str, Any]:
        """A copy of a message with what people wrote broken. An operator's system text may show the user-defined
        markers, an assistant's own text keeps those that templates look for."""
        role = entry["role"]
        keep: frozenset[str] = frozenset()
        if role == "assistant":
            keep = self._markers | self.spelled_out
        elif role == "system":
            keep = self.spelled_out
        out: dict[str, Any] = {}
        for key, value in entry.items():
            if key in ("role", "type"):
                out[key] = value
            elif isinstance(value, str):
                out[key] = self._text.break_text(value, breaker, keep if key != "name" else frozenset())
            elif key == "content" and isinstance(value, list):
                out[key] = [{**part, "text": self._text.break_text(part["text"], breaker, keep)} for part in value]
            else:
                out[key] = self._text.break_value(value, breaker)
        return out


def _attempts(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The messages as they are, then by each fold alone, then by the folds on top of one another."""
    tried = [tuple(messages)]
    yield tried[0]
    stacked: Sequence[Message] = tuple(messages)
    alone = [tuple(fold(messages)) for fold in FOLDS]
    together = []
    for fold in FOLDS:
        stacked = tuple(fold(stacked))
        together.append(stacked)
    for attempt in (*alone, *together):
        if attempt and attempt not in tried:
            tried.append(attempt)
            yield attempt


def make_template(source: str, tokenizer: Tokenizer, assistant_markers: frozenset[str] = frozenset()) -> ChatTemplate:
    """The template with what it needs to know of the vocabulary. Raises `FileError`."""

    def spelling(token_id: int | None) -> str:
        return "" if token_id is None else tokenizer.spelling(token_id)

    return ChatTemplate(
        source,
        spelling(tokenizer.bos_id),
        spelling(tokenizer.eos_id),
        control=tokenizer.control_spellings,
        user_defined=tokenizer.user_defined_spellings,
        assistant_markers=assistant_markers,
        extra_variables={
            "unk_token": spelling(tokenizer.unknown_id),
            "pad_token": spelling(tokenizer.padding_id),
        },
    )


def thinking_names(on: bool) -> dict[str, Any]:
    """Whether reasoning is wanted, under the names that templates know it by."""
    return {
        "enable_thinking": on,
        "thinking": on,
        "reasoning": on,
        "thinking_mode": "enabled" if on else "disabled",
    }
