"""The conversations that the shared templates are rendered with, for tests and for the script that makes the
expected renderings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from phobos.chat.messages import Message, ToolCall, ToolSpec

BOS, EOS = "<BOS>", "<EOS>"
WEATHER = ToolSpec(
    "get_weather",
    "Get the weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "City"},
            "days": {"type": "integer", "description": "How many days"},
        },
        "required": ["city"],
    },
)
SYSTEM = Message("system", "Be brief")
USER = Message("user", "Hello there")
CALL = ToolCall("abcDEF123", "get_weather", '{"city": "Münster", "days": 3}')
OTHER_CALL = ToolCall("defGHI456", "get_weather", '{"city": "Rom"}')


def result(call: ToolCall, text: str) -> Message:
    return Message("tool", text, tool_call_id=call.id, name=call.name)


def calling(*calls: ToolCall, content: str | None = None, reasoning: str | None = None) -> Message:
    return Message("assistant", content, reasoning, calls)


@dataclass(frozen=True)
class Conversation:
    """Messages, with or without the weather tool."""

    messages: tuple[Message, ...]
    has_tools: bool = False

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (WEATHER,) if self.has_tools else ()

    @property
    def said(self) -> list[str]:
        """Text of the messages."""
        return [message.content for message in self.messages if message.content]


_ANSWERED = (calling(CALL), result(CALL, "12 degrees"))
CONVERSATIONS = {
    "plain": Conversation((USER,)),
    "system": Conversation((SYSTEM, USER)),
    "turns": Conversation((SYSTEM, USER, Message("assistant", "Hi!"), Message("user", "Next?"))),
    "tool": Conversation((SYSTEM, USER), has_tools=True),
    "result": Conversation((SYSTEM, USER, *_ANSWERED), has_tools=True),
    "after": Conversation(
        (SYSTEM, USER, *_ANSWERED, Message("assistant", "It is 12"), Message("user", "Thanks")), has_tools=True
    ),
    "spoken": Conversation((USER, calling(CALL, content="Let me see"), result(CALL, "12 degrees")), has_tools=True),
    "thought": Conversation(
        (USER, calling(CALL, reasoning="A tool helps"), result(CALL, "12 degrees")), has_tools=True
    ),
    "two": Conversation(
        (USER, calling(CALL, OTHER_CALL), result(CALL, "12 degrees"), result(OTHER_CALL, "30 degrees")), has_tools=True
    ),
}


def client_messages(conversation: Conversation, *, content: str | None, text_arguments: bool) -> list[dict[str, Any]]:
    """The messages as a client would send them, written without the code under test. `content` stands where a message
    only calls (None leaves the key out); arguments are mappings or JSON text."""
    out = []
    for message in conversation.messages:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.content is None:
            entry.pop("content")
            if content is not None:
                entry["content"] = content
        if message.reasoning:
            entry["reasoning_content"] = message.reasoning
        if message.tool_calls:
            entry["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": call.arguments if text_arguments else json.loads(call.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            entry |= {"tool_call_id": message.tool_call_id, "name": message.name}
        out.append(entry)
    return out


def client_tools(conversation: Conversation) -> list[dict[str, Any]] | None:
    """The tools as a client would send them."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in conversation.tools
    ] or None
