"""The model's own chat template: from messages to the runs of text that become the prompt.

Rules. The template runs in a sandbox (`template_sandbox.py`). Only its own text becomes control tokens
(`control_text.py`). What a template cannot say is folded into what it can (`conversation.py`); where nothing helps,
the `RequestError` carries the template's own words. BOS stands exactly once where the vocabulary adds one, and exactly
where the template writes it where it does not. A `ChatTemplate` is immutable and may be used by several threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
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
from phobos.chat.dialects import choose_dialect
from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.messages import GenerationRequest, Message, ToolCall, ToolSpec
from phobos.chat.named_templates import NAMED_TEMPLATES
from phobos.errors import RequestError, UsageError
from phobos.gguf.tokenizer import Tokenizer

log = logging.getLogger(__name__)

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

        self.source = source
        self.spelled_out = frozenset(text for text in user_defined if text in source)
        self._text = ControlText((*control, *self.spelled_out))
        self._markers = ASSISTANT_MARKERS | assistant_markers
        self._words = tool_words
        self._variables = {"bos_token": bos_text, "eos_token": eos_text, **(extra_variables or {})}
        self._template = SandboxedTemplate(source)
        self.traits = _find_traits(self)

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
        """The prompt as text, as `/apply-template` shows it; options are those of `render`."""
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


_SYSTEM, _USER, _RESULT, _CALLED, _NAME, _VALUE = "Qsystemq", "Quserq", "Qresultq", "Qcalledq", "qname", "Qvalueq"


def _find_traits(template: ChatTemplate) -> Traits:
    """Render small conversations and see what comes out."""
    traits = Traits()

    def shows(messages: Sequence[Message], tools: bool, trial: Traits, *wanted: str) -> bool:
        text = _try_render(template, messages, tools, trial)
        return text is not None and all(word in text for word in wanted)

    user, system = Message("user", _USER), Message("system", _SYSTEM)
    trials = [
        replace(traits, no_tools=no_tools, has_parts=has_parts)
        for has_parts in (False, True)
        for no_tools in ("none", "empty", "missing")
    ]
    traits = next((trial for trial in trials if shows([user], False, trial, _USER)), traits)
    knows_system = shows([system, user], False, traits, _SYSTEM, _USER)
    first = [system, user] if knows_system else [user]
    knows_tools = shows(first, True, traits, _NAME, _USER)
    silent, aloud = (_try_render(template, [user], False, traits, thinking) for thinking in (False, True))
    traits = replace(traits, knows_system=knows_system, knows_tools=knows_tools, knows_thinking=silent != aloud)
    return _find_call_traits(template, traits, first)


def _find_call_traits(template: ChatTemplate, traits: Traits, first: list[Message]) -> Traits:
    """How calls and their results are given, or that the template has no words for them."""
    call = ToolCall("123456789", _NAME, json.dumps({"qkey": _VALUE}))
    ask = Message("assistant", None, tool_calls=(call,))
    answer = Message("tool", _RESULT, tool_call_id=call.id, name=_NAME)
    best: tuple[int, Traits] | None = None
    for has_text_arguments in (False, True):
        for empty_content in ("missing", "none", "blank"):
            trial = replace(traits, has_text_arguments=has_text_arguments, empty_content=empty_content)
            text = _try_render(template, [*first, ask, answer], traits.knows_tools, trial)
            if text is None or text.count(_NAME) <= traits.knows_tools or _VALUE not in text:
                continue
            # Arguments written as JSON text twice over, or an absent content written out, are worse than none.
            flaws = text.count("None") + text.count("null") + 10 * text.count('\\"') + 100 * (_RESULT not in text)
            if best is None or flaws < best[0]:
                best = flaws, trial
    if best is None:
        said = replace(ask, content=_CALLED, tool_calls=())
        text = _try_render(template, [*first, said, answer], traits.knows_tools, traits)
        # A template without any words for tools may print whatever role it is given; its model has not seen that one.
        knows_results = traits.knows_tools and text is not None and _RESULT in text
        return replace(traits, knows_calls=False, knows_results=knows_results)
    traits = replace(best[1], knows_results=best[0] < 100)
    text = _try_render(template, [*first, replace(ask, content=_CALLED), answer], traits.knows_tools, traits)
    return replace(traits, splits_calls=text is not None and _VALUE not in text)


def _try_render(
    template: ChatTemplate, messages: Sequence[Message], tools: bool, traits: Traits, thinking: bool = False
) -> str | None:
    schema = {"type": "object", "properties": {"qkey": {"type": "string", "description": "q"}}, "required": ["qkey"]}
    definitions = [tool_dict(ToolSpec(_NAME, "q", schema))] if tools else []
    options = {"add_generation_prompt": True, **_thinking_names(thinking)}
    try:
        return template.render_entries(to_template(messages, traits), definitions, traits, options)
    except RequestError:
        return None


def find_template(metadata: Mapping[str, Any], override: str | None = None) -> str | None:
    """The source of a model's template: the named or filed one that overrides it, else the file's own, else None.
    Raises `UsageError` for an override that is neither."""
    if override is not None:
        if override in NAMED_TEMPLATES:
            return NAMED_TEMPLATES[override]
        try:
            return Path(override).read_text()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            names = ", ".join(sorted(NAMED_TEMPLATES))
            raise UsageError(
                f"cannot read the chat template {override!r} ({reason}): give a file or one of {names}"
            ) from None
    own = metadata.get("tokenizer.chat_template")
    with_tools = metadata.get("tokenizer.chat_template.tool_use")
    if not isinstance(own, str) or not own.strip():
        return with_tools if isinstance(with_tools, str) and with_tools.strip() else None
    if isinstance(with_tools, str) and with_tools.strip():
        plain, tooled = own.removesuffix("\n"), with_tools.removesuffix("\n")
        return f"{{% if tools %}}{tooled}{{% else %}}{plain}{{% endif %}}"
    return own


def without_tools(template: ChatTemplate) -> ChatTemplate:
    """The template as one that has no words for tools, so that they are written out as text."""
    plain = copy(template)
    plain.traits = replace(template.traits, knows_tools=False, knows_calls=False)
    return plain


def fit_dialect(template: ChatTemplate) -> tuple[Dialect, ChatTemplate]:
    """A template's dialect, and the template as it is to be used. One whose way of writing calls no dialect knows is
    not shown tools: they are asked for in the plain dialect's form. Where it has no words for past calls only, they
    are written as its dialect does; where it has none for definitions only, its dialect introduces them."""
    traits = template.traits
    knows_calls = traits.knows_calls and traits.knows_results
    dialect = choose_dialect(template.source, knows_tools=traits.knows_tools, knows_calls=knows_calls)
    if dialect.introduction and not traits.knows_tools:
        fitted = copy(template)
        fitted._words = replace(template._words, introduction=dialect.introduction, only_introduce=True)
        return dialect, fitted
    if dialect is PLAIN and traits.knows_tools:
        return dialect, without_tools(template)
    write = getattr(dialect.calls, "write", None)
    if traits.knows_calls or not traits.knows_tools or write is None:
        return dialect, template
    fitted = copy(template)
    fitted._words = replace(template._words, write_calls=write)
    fitted._markers = template._markers | frozenset(filter(None, dialect.calls.markers))
    return dialect, fitted


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


def _thinking_names(on: bool) -> dict[str, Any]:
    return {
        "enable_thinking": on,
        "thinking": on,
        "reasoning": on,
        "thinking_mode": "enabled" if on else "disabled",
    }


_EFFORTS = {"minimal": "low", "xhigh": "high"}


def thinking_variables(request: GenerationRequest) -> dict[str, Any]:
    """What a request says of reasoning, under the names that templates know it by."""
    on = request.thinking or request.prefill_thinking is not None
    variables = _thinking_names(on)
    effort = request.reasoning_effort
    if on and effort and effort != "none":
        variables |= {"reasoning_effort": _EFFORTS.get(effort, effort), "thinking_effort": _EFFORTS.get(effort, effort)}
    if request.preserve_thinking is not None:
        keep = request.preserve_thinking
        variables |= {"preserve_thinking": keep, "keep_past_thinking": keep}
        variables |= {"clear_thinking": not keep, "truncate_history_thinking": not keep, "drop_thinking": not keep}
    return variables | dict(request.template_kwargs)


def render_request(template: ChatTemplate, request: GenerationRequest) -> list[Segment]:
    """The prompt of a chat request. A trailing assistant message is continued where the request says so; a prefilled
    reasoning opens the answer; a reasoning that nobody asked for is closed."""
    tools = () if request.tool_choice.kind == "none" else request.tools
    variables = {"add_generation_prompt": True, **thinking_variables(request)}
    messages = request.messages
    last = messages[-1] if messages else None
    if request.continue_assistant and last is not None and last.role == "assistant" and not last.tool_calls:
        segments = template.render(messages[:-1], tools, **variables)
        begun = _close_reasoning(template, segments, last.reasoning or "")
        begun = _head_answer(template, begun)
        return [*begun, Segment(last.content or "", False)]
    segments = template.render(messages, tools, **variables)
    if request.prefill_thinking is not None:
        opened = _open_reasoning(template, segments)
        return [*opened, Segment(request.prefill_thinking, False)]
    # Some templates open the reasoning whatever they are told.
    return segments if variables["enable_thinking"] else _close_reasoning(template, segments, "")


_REASONING_PAIRS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<mm:think>", "</mm:think>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
)
# What a prompt may end with that says whom the next part is for, and how a part for the user goes on.
_ANSWER_HEADS = (
    (">>>all", ">>>", "all\n"),
    ("<atem:", "<|start|>assistant", " to=user<|message|>"),
    ("<|channel|>", "<|start|>assistant", "<|channel|>final<|message|>"),
)


def _tail(segments: Sequence[Segment]) -> str:
    """The end of a prompt, enough to see a marker in."""
    return "".join(segment.text for segment in segments[-3:]).rstrip()


def _close_reasoning(template: ChatTemplate, segments: list[Segment], reasoning: str) -> list[Segment]:
    """The prompt with the reasoning written and closed, where it ends in an open one."""
    end = next((end for begin, end in _REASONING_PAIRS if _tail(segments).endswith(begin)), None)
    if end is None:
        return segments
    return [*segments, Segment(reasoning, False), *template.own_text(f"\n{end}\n\n")]


def _head_answer(template: ChatTemplate, segments: list[Segment]) -> list[Segment]:
    """The prompt with the head of a part for the user, where it ends before one."""
    for mark, tail, head in _ANSWER_HEADS:
        if mark in template.source and _tail(segments).endswith(tail):
            return [*segments, *template.own_text(head)]
    return segments


def _open_reasoning(template: ChatTemplate, segments: list[Segment]) -> list[Segment]:
    """The prompt with a reasoning open at its end, in the template's own markers."""
    if any(_tail(segments).endswith(begin) for begin, _ in _REASONING_PAIRS):
        return segments
    begin = next((begin for begin, _ in _REASONING_PAIRS if begin in template.source), "<think>")
    return [*segments, *template.own_text(f"{begin}\n")]


def encode_segments(segments: Sequence[Segment], template: ChatTemplate, tokenizer: Tokenizer) -> list[int]:
    """Tokens of a rendered prompt, with one BOS where the vocabulary adds one."""
    runs = [(segment.text, segment.is_control) for segment in segments]
    ids = tokenizer.encode_runs(_join_plain(runs), spelled_out=template.spelled_out)
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None:
        n = 0
        while n < len(ids) and ids[n] == bos:
            n += 1
        ids[:n] = [bos]
    return ids


def _join_plain(runs: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    """Neighbouring plain runs as one, because text between control tokens is tokenized whole."""
    held = ""
    for text, is_control in runs:
        if not is_control:
            held += text
            continue
        if held:
            yield held, False
            held = ""
        yield text, True
    if held:
        yield held, False


def encode_prompt(template: ChatTemplate, tokenizer: Tokenizer, request: GenerationRequest) -> list[int]:
    """The prompt tokens of a chat request. Raises `RequestError`."""
    return encode_segments(render_request(template, request), template, tokenizer)
