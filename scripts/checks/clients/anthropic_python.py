"""The `anthropic` package for Python: messages, streams, tools, counting, errors."""

from __future__ import annotations

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="local", max_retries=0)
request = {"model": "local", "max_tokens": 24, "messages": [{"role": "user", "content": "Say hello."}]}

whole = client.messages.create(extra_body={"temperature": 0}, **request)
with client.messages.stream(extra_body={"temperature": 0}, **request) as stream:
    joined = "".join(stream.text_stream)
assert whole.content[0].text == joined != ""
assert client.messages.count_tokens(model="local", messages=request["messages"]).input_tokens > 0

schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
message = client.messages.create(
    model="local",
    max_tokens=80,
    messages=[{"role": "user", "content": "Weather in Paris?"}],
    tools=[{"name": "weather", "input_schema": schema}],
    tool_choice={"type": "any", "disable_parallel_tool_use": True},
    extra_body={"temperature": 0},
)
(use,) = [block for block in message.content if block.type == "tool_use"][:1]
assert use.name == "weather" and "city" in use.input and message.stop_reason == "tool_use"
try:
    client.messages.create(**(request | {"messages": []}))
except anthropic.BadRequestError as error:
    assert error.body["error"]["type"] == "invalid_request_error"
else:
    raise AssertionError("an empty conversation was accepted")
print("messages, stream, tools, count_tokens, errors")
