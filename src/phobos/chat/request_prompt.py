"""From a chat request to the tokens of its prompt: what it says of reasoning, where its answer begins, one BOS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from phobos.chat.messages import GenerationRequest
from phobos.chat.template import ChatTemplate, Segment, thinking_names
from phobos.gguf.tokenizer import Tokenizer

_EFFORTS = {"minimal": "low", "xhigh": "high"}


def thinking_variables(request: GenerationRequest) -> dict[str, Any]:
    """What a request says of reasoning, under the names that templates know it by."""
    on = request.thinking or request.prefill_thinking is not None
    variables = thinking_names(on)
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


def _tail(segments: Sequence[Segment]) -> str:
    """The end of a prompt, enough to see a marker in."""
    return "".join(segment.text for segment in segments[-3:]).rstrip()


def _close_reasoning(template: ChatTemplate, segments: list[Segment], thoughts: str) -> list[Segment]:
    """The prompt with the reasoning written and closed, where it ends in an open one."""
    reasoning = template.dialect.reasoning
    if not _tail(segments).endswith(reasoning.begin):
        return segments
    return [*segments, Segment(thoughts, False), *template.own_text(reasoning.closing)]


def _head_answer(template: ChatTemplate, segments: list[Segment]) -> list[Segment]:
    """The prompt with the head of a part for the user, where it ends before one."""
    dialect = template.dialect
    if dialect.message_begin and _tail(segments).endswith(dialect.message_begin):
        return [*segments, *template.own_text(dialect.answer_begin)]
    return segments


def _open_reasoning(template: ChatTemplate, segments: list[Segment]) -> list[Segment]:
    """The prompt with a reasoning open at its end."""
    reasoning = template.dialect.reasoning
    if _tail(segments).endswith(reasoning.begin):
        return segments
    return [*segments, *template.own_text(reasoning.opening)]


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
