"""The `litellm` package: completion, stream, tools, errors; and Anthropic's protocol."""

from __future__ import annotations

import json
import sys

import litellm

place = {"model": "openai/local", "api_base": f"{sys.argv[1]}/v1", "api_key": "local", "num_retries": 0}
request = place | {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 24}

whole = litellm.completion(**request).choices[0].message.content
joined = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **request))
assert whole and whole == joined
parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
reply = litellm.completion(tools=tools, tool_choice="required", **(request | {"max_tokens": 80}))
call = reply.choices[0].message.tool_calls[0]
assert call.function.name == "weather" and "city" in json.loads(call.function.arguments)
try:
    litellm.completion(**(request | {"temperature": -1}))
except litellm.BadRequestError:
    pass
else:
    raise AssertionError("a wrong temperature was accepted")
message = litellm.completion(**(request | {"model": "anthropic/local", "api_base": sys.argv[1]}))
assert message.choices[0].message.content == whole
print("completion, stream, tools, errors, Anthropic's protocol")
