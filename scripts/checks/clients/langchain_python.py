"""The `langchain-openai` package: invoke, stream, tools, structured output."""

from __future__ import annotations

import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

place: dict[str, Any] = {"model": "local", "base_url": f"{sys.argv[1]}/v1", "api_key": "local", "max_retries": 0}
model = ChatOpenAI(temperature=0, max_tokens=24, **place)
whole = model.invoke("Say hello.").content
assert whole and whole == "".join(chunk.content for chunk in model.stream("Say hello."))


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}."


longer = ChatOpenAI(temperature=0, max_tokens=200, **place)
asked: list[Any] = [HumanMessage("Weather in Paris?")]
called = longer.bind_tools([weather], tool_choice="weather").invoke(asked)
asked += [called, *(ToolMessage(weather.invoke(c["args"]), tool_call_id=c["id"]) for c in called.tool_calls)]
assert called.tool_calls[0]["name"] == "weather" and longer.invoke(asked).content

schema = {
    "title": "person",
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
person = longer.with_structured_output(schema, method="json_schema").invoke("Ada is 36 years old.")
assert isinstance(person["age"], int)
assert ChatOpenAI(temperature=0, max_tokens=24, use_responses_api=True, **place).invoke("Say hello.").text
print("invoke, stream, tools, structured output, responses")
