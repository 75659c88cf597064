"""The conversation: its messages, and what is done to them. As a file it is the JSON list of its messages.

The system text stands apart from the turns, so that it can be changed at any time and survives `/clear`. Owner: the
chat's main thread. Nothing here knows of a terminal or a model.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, get_args

from phobos.chat.messages import Message, Role, ToolCall
from phobos.errors import FileError
from phobos.private import open_private

FENCE = "```"


class Transcript:
    """The turns so far and the system text before them."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything, the system text first."""
        before = (Message("system", self.system),) if self.system else ()
        return (*before, *self.turns)

    @property
    def last_user_index(self) -> int | None:
        """Where the last exchange begins, or None."""
        return next((i for i in reversed(range(len(self.turns))) if self.turns[i].role == "user"), None)

    @property
    def last_answer(self) -> Message | None:
        """The last message the model wrote."""
        return next((m for m in reversed(self.turns) if m.role == "assistant"), None)

    def cut(self, index: int) -> None:
        """Forget the turns from `index` on."""
        del self.turns[index:]

    def undo(self) -> Message | None:
        """Forget the last exchange; its question, or None where there is none."""
        index = self.last_user_index
        if index is None:
            return None
        question = self.turns[index]
        self.cut(index)
        return question

    def replace(self, messages: tuple[Message, ...]) -> None:
        """Become another conversation; system messages at its head are the system text."""
        n_head = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
        self.system = "\n\n".join(m.content or "" for m in messages[:n_head]) or None
        self.turns = list(messages[n_head:])


def to_json(messages: tuple[Message, ...]) -> str:
    """The messages as clients of the HTTP interface send them, indented."""
    return json.dumps([message_object(m) for m in messages], ensure_ascii=False, indent=2) + "\n"


def message_object(message: Message) -> dict[str, Any]:
    """One message as JSON; what it lacks is left out."""
    shape: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        shape["reasoning_content"] = message.reasoning
    if message.tool_calls:
        shape["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shape["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        shape["name"] = message.name
    return shape


def from_json(text: str, name: str) -> tuple[Message, ...]:
    """The messages in a file's text: a list, or a request that holds one. `FileError` says what is wrong."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{name} is not valid JSON: choose a file written by /save") from error
    if isinstance(found, dict):
        found = found.get("messages")
    if not isinstance(found, list):
        raise FileError(f"{name} does not hold a list of messages: choose a file written by /save")
    return tuple(_read_message(item, f"{name}: message {index + 1}") for index, item in enumerate(found))


def _read_message(item: Any, place: str) -> Message:
    if not isinstance(item, dict):
        raise FileError(f"{place} is not an object with role and content: fix it, or choose another file")
    role: Any = "system" if item.get("role") == "developer" else item.get("role")
    if role not in get_args(Role):
        raise FileError(f"{place} needs a role ({', '.join(get_args(Role))}): fix it, or choose another file")
    content = item.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    listed = item.get("tool_calls") or ()
    calls = tuple(_read_call(call, place) for call in (listed if isinstance(listed, list) else [listed]) if listed)
    if not isinstance(content, str) and not (content is None and calls):
        raise FileError(f"{place} has no text: fix it, or choose another file")
    texts = {key: item.get(key) for key in ("reasoning_content", "tool_call_id", "name")}
    if any(value is not None and not isinstance(value, str) for value in texts.values()):
        raise FileError(f"{place} has a number or a list instead of text: fix it, or choose another file")
    return Message(role, content, texts["reasoning_content"], calls, texts["tool_call_id"], texts["name"])


def _read_call(call: Any, place: str) -> ToolCall:
    try:
        function = call["function"]
        values = (call["id"], function["name"], function["arguments"])
    except (TypeError, KeyError) as error:
        raise FileError(f"{place} has a tool call without id, name or arguments: choose another file") from error
    if not all(isinstance(value, str) for value in values):
        raise FileError(f"{place} has a tool call that is not text: choose another file")
    return ToolCall(*values)


def to_markdown(messages: tuple[Message, ...], model: str) -> str:
    """The conversation for people: a heading a turn, reasoning as a quotation."""
    names = {"user": "You", "assistant": model, "system": "System", "tool": "Tool"}
    parts = [f"# Conversation with {model}"]
    for message in messages:
        parts.append(f"## {names[message.role]}")
        if message.reasoning:
            parts.append("\n".join(f"> {line}".rstrip() for line in message.reasoning.strip().splitlines()))
        for call in message.tool_calls:
            parts.append(f"{FENCE}json\n{call.name}({call.arguments})\n{FENCE}")
        if message.content:
            parts.append(message.content.strip("\n"))
    return "\n\n".join(parts) + "\n"


def to_text(messages: tuple[Message, ...]) -> str:
    """The conversation as plain text, a paragraph a message: what `/decide` reads."""
    return "\n\n".join(f"{m.role.capitalize()}: {(m.content or '').strip()}" for m in messages)


def code_blocks(text: str) -> list[str]:
    """The fenced code in an answer, without the fences; one that is cut off counts."""
    blocks: list[str] = []
    lines: list[str] | None = None
    mark = ""
    for line in text.splitlines():
        bare = line.strip()
        if lines is None and bare.startswith((FENCE, "~~~")):
            mark = bare[: len(bare) - len(bare.lstrip(bare[0]))]
            lines = []
        elif lines is not None and bare.startswith(mark) and not bare.strip(mark[0]):
            blocks.append("\n".join(lines))
            lines = None
        elif lines is not None:
            lines.append(line)
    if lines:
        blocks.append("\n".join(lines))
    return blocks


def write_file(path: Path, text: str) -> None:
    """Write all or nothing. Raises `FileError`."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8", newline="\n", opener=open_private) as file:
            file.write(text)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True) if part.parent.is_dir() else None
        raise FileError(f"cannot write {path}: {error.strerror}; name another file") from error


def read_file(path: Path) -> str:
    """A text file. Raises `FileError`."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not valid UTF-8: choose another file") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}; name another file") from error
