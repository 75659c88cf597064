"""The `openai` package for Python: chat, streams, tools, bound output, responses, errors."""

from __future__ import annotations

import json
import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="local", max_retries=0)
hello = [{"role": "user", "content": "Say hello."}]
limits = {"model": "local", "temperature": 0, "max_tokens": 24}

whole = client.chat.completions.create(messages=hello, **limits).choices[0].message.content
stream = client.chat.completions.create(messages=hello, stream=True, stream_options={"include_usage": True}, **limits)
chunks = list(stream)
assert whole and whole == "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
assert chunks[-1].usage.completion_tokens > 0

parameters = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
asked = [{"role": "user", "content": "Weather in Paris?"}]
with client.chat.completions.stream(
    messages=asked,
    tools=[tool],
    tool_choice="required",
    parallel_tool_calls=False,
    model="local",
    temperature=0,
    max_tokens=80,
) as events:
    call = events.get_final_completion().choices[0].message.tool_calls[0]
assert call.function.name == "weather" and "city" in json.loads(call.function.arguments)

assert client.completions.create(prompt="Once upon", **limits).choices[0].text
assert client.responses.create(model="local", input="Say hello.", temperature=0, max_output_tokens=24).output_text
assert client.models.list().data[0].id
try:
    client.chat.completions.create(messages=[], model="local")
except openai.BadRequestError as error:
    assert error.param == "messages"
else:
    raise AssertionError("an empty conversation was accepted")
print("chat, stream, tools, completions, responses, models, errors")
