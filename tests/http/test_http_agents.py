"""What coding agents send, in their shapes, through the real server and the real engine.

The model behind it is `doubles/task_model.py` on the tokenizer, template and grammars of a real file: it makes the call
that the request offers. `scripts/checks/check_agents.py` runs the agents themselves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from doubles.scripted_engine import RawClient, Reply
from doubles.task_model import DONE, TEXT_FORMS, Task, fill, install, plan_answer, rest_of
from phobos.chat.messages import GenerationRequest, Message, OutputFormat, ToolSpec
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.engine.model import load_model
from phobos.http.listener import Listener
from phobos.settings import EngineSettings, ServeSettings

NAME = "SmolLM2-135M-Instruct-Q4_1.gguf"

PATH_AND_CONTENT = {
    "type": "object",
    "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["file_path", "content"],
}
RUN = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def request(text: str = "write it", *tools: ToolSpec, **fields: object) -> GenerationRequest:
    return GenerationRequest("r", messages=(Message("user", text),), tools=tools, **fields)  # type: ignore[arg-type]


def call_of(answer: str) -> dict[str, object]:
    assert answer.startswith("<tool_call>\n") and answer.endswith("\n</tool_call>")
    return json.loads(answer.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))


def test_the_scripted_model_writes_the_file_by_the_best_tool(tmp_path: Path) -> None:
    task = Task(tmp_path)
    write, run = ToolSpec("Write", "", PATH_AND_CONTENT), ToolSpec("Bash", "", RUN)
    call = call_of(plan_answer(request("go", run, write), task))
    assert call == {"name": "Write", "arguments": {"file_path": str(task.path), "content": "hello\n"}}
    assert call_of(plan_answer(request("go", run), task))["arguments"] == {"command": f"echo hello > {task.path}"}
    assert plan_answer(request("go"), task) == DONE
    task.path.write_text("hello\n")
    assert plan_answer(request("go", run, write), task) == DONE


@pytest.mark.parametrize("form", TEXT_FORMS, ids=lambda form: form.marker)
def test_the_scripted_model_answers_in_an_agents_own_form(tmp_path: Path, form) -> None:
    task = Task(tmp_path)
    assert plan_answer(request(f"answer with {form.marker}"), task) == form.act(task)
    task.path.write_text("hello\n")
    assert plan_answer(request(f"answer with {form.marker}"), task) == form.end


def test_the_scripted_model_fills_formats(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"anyOf": [{"type": "string"}]}, "x": {"enum": ["a"]}, "y": {}},
        "required": ["n", "s", "x"],
    }
    answer = plan_answer(request(output=OutputFormat("json_schema", schema=schema)), Task(tmp_path))
    assert json.loads(answer) == {"n": 1, "s": DONE, "x": "a"}
    assert fill({"type": "array", "items": {"type": "string"}}, "command", Task(tmp_path))[0] == "bash"


def test_what_is_left_to_write_is_found_whatever_the_white_space() -> None:
    assert rest_of('{"a": 1}', '{"a":') == " 1}" and rest_of('{"a":1}', '{"a": ') == "1}"
    assert rest_of("ab", "ab") == "" and rest_of("ab", "") == "ab"


# --- whole turns ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Task:
    return Task(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def engine(task: Task) -> Iterator[Engine]:
    path = Path(os.environ.get("PHOBOS_TEST_MODELS", Path(__file__).parents[2] / "models")) / NAME
    if not path.exists():
        pytest.skip(f"no {NAME} in models/: fetch it, or set PHOBOS_TEST_MODELS")
    with pytest.MonkeyPatch.context() as patch:
        install(task, patch.setattr)
        engine = Engine(load_model(EngineSettings(path), lambda progress: None), Counters())
        engine.start()
        yield engine
        engine.close()


@pytest.fixture
def address(engine: Engine, task: Task) -> Iterator[tuple[str, int]]:
    task.path.unlink(missing_ok=True)
    listener = Listener(ServeSettings(listen="127.0.0.1:0"), engine.counters)
    listener.bind()
    listener.start()
    listener.attach(engine)
    parts = urlsplit(listener.address)
    yield str(parts.hostname), int(parts.port or 0)
    listener.close(0)


def post(address: tuple[str, int], path: str, body: dict[str, object]) -> Reply:
    with RawClient(address) as client:
        return client.ask("POST", path, body)


def schema(**properties: object) -> dict[str, object]:
    """As agents make them: a draft's name on top, closed."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string", "description": "some text", "minLength": 1}


@pytest.mark.model
def test_a_task_over_chat_completions(address, task) -> None:
    tool = {"name": "write", "description": "Write", "parameters": schema(filePath=TEXT, content=TEXT)}
    turns: list[dict[str, object]] = [
        {"role": "developer", "content": "You write files."},
        {"role": "user", "content": [{"type": "text", "text": "write it"}]},
    ]
    body = {
        "model": "local",
        "messages": turns,
        "tools": [{"type": "function", "function": tool}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "store": False,
        "max_completion_tokens": 2000,
        "tool_choice": "auto",
    }
    calls: list[dict[str, object]] = []
    for event in post(address, "/v1/chat/completions", body).events[:-1]:
        calls += [call for choice in event["choices"] for call in choice["delta"].get("tool_calls", ())]
    arguments = "".join(str(call["function"].get("arguments", "")) for call in calls)  # type: ignore[attr-defined]
    assert json.loads(arguments) == {"filePath": str(task.path), "content": "hello\n"}
    call = {"id": calls[0]["id"], "type": "function", "function": {"name": "write", "arguments": arguments}}
    turns += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "written"},
    ]
    task.path.write_text("hello\n")
    events = post(address, "/v1/chat/completions", body).events[:-1]
    said = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert said == DONE


@pytest.mark.model
def test_a_task_over_messages(address, task) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    turns: list[dict[str, object]] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a note"}, {"type": "text", "text": "write it", **cached}],
        }
    ]
    body = {
        "model": "local",
        "messages": turns,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: n=1"},
            {"type": "text", "text": "Be an agent."},
        ],
        "tools": [
            {"name": "Flow", "description": "Any", "input_schema": schema(args={"description": "a value of any type"})},
            {"name": "Note", "input_schema": schema(meta={"type": "object", "propertyNames": {"type": "string"}})},
            {"name": "Write", "description": "Write", "input_schema": schema(file_path=TEXT, content=TEXT)},
        ],
        "metadata": {"user_id": "someone"},
        "max_tokens": 2000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "stream": True,
    }
    events = post(address, "/v1/messages?beta=true", body).events
    block = next(event["content_block"] for event in events if event["type"] == "content_block_start")
    pieces = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    arguments = json.loads("".join(piece.get("partial_json", "") for piece in pieces))
    assert block["name"] == "Write" and arguments == {"file_path": str(task.path), "content": "hello\n"}
    call = {"type": "tool_use", "id": block["id"], "name": "Write", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "written", **cached}
    turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    task.path.write_text("hello\n")
    events = post(address, "/v1/messages?beta=true", body).events
    assert "".join(e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta") == DONE


@pytest.mark.model
def test_a_task_over_responses(address, task) -> None:
    items: list[dict[str, object]] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are an agent."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "write it"}]},
    ]
    run = {"type": "object", "properties": {"cmd": TEXT, "yield_time_ms": {"type": "number"}}, "required": ["cmd"]}
    close = {"type": "function", "name": "close", "strict": False, "parameters": schema(target=TEXT)}
    body = {
        "model": "local",
        "input": items,
        "tools": [
            {"type": "function", "name": "exec_command", "strict": False, "parameters": run},
            {"type": "namespace", "name": "agents", "description": "Others", "tools": [close]},
            {"type": "web_search", "external_web_access": True},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread",
        "client_metadata": {"thread_id": "thread"},
    }
    done = post(address, "/v1/responses", body).events[-1]["response"]
    (call,) = [item for item in done["output"] if item["type"] == "function_call"]
    assert call["name"] == "exec_command" and json.loads(call["arguments"]) == {"cmd": task.command}
    items += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "exit code 0"}]
    task.path.write_text("hello\n")
    done = post(address, "/v1/responses", body).events[-1]["response"]
    assert done["status"] == "completed" and done["output"][-1]["content"][0]["text"] == DONE
