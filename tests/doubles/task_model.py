"""`phobos-cli` over a model that does one task whatever it is asked: writing `hello.txt` into a folder.

Not a test. Run as a program it is `phobos-cli`, for `scripts/checks/check_agents.py`: all of it is real (listener,
protocols, tool schemas, the file's tokenizer, chat template, dialect and grammars, the engine) but the arithmetic. So
an agent fails here for what the server does, never for the model's wits. What is written depends on what a request
offers: a tool that writes files, else one that runs commands, else the form of answer that its prompt asks for. Once
the file is there the model says so and is done. The folder is named by `TASK_FOLDER`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from doubles.scripted_backend import ScriptedBackend
from phobos.chat.messages import GenerationRequest, ToolSpec

NAME, TEXT = "hello.txt", "hello\n"
DONE = f"{NAME} is written."
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # how mini-swe-agent wants to be told

_PATHS = frozenset({"file_path", "filepath", "filePath", "path", "filename", "absolute_path", "target_file"})
_CONTENTS = frozenset({"content", "contents", "text", "file_text", "fileContent"})
_COMMANDS = frozenset({"command", "cmd", "commands", "script"})
_ENDS = ("attempt_completion", "final_answer", "task_done", "submit_and_exit")


@dataclass(frozen=True)
class Task:
    """Where the file goes."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / NAME

    @property
    def command(self) -> str:
        """The shell command that writes it."""
        return f"echo {TEXT.strip()} > {self.path}"


@dataclass(frozen=True)
class TextForm:
    """How an agent without tools wants its answers: what its prompt holds, and the answers before and after."""

    marker: str
    act: Callable[[Task], str]
    end: str


TEXT_FORMS = (
    TextForm(
        "<write_to_file>",
        lambda task: f"<write_to_file>\n<path>{NAME}</path>\n<content>\n{TEXT}</content>\n</write_to_file>",
        f"<attempt_completion>\n<result>{DONE}</result>\n</attempt_completion>",
    ),
    TextForm(
        "```mswea_bash_command",
        lambda task: f"THOUGHT: I write it.\n\n```mswea_bash_command\n{task.command}\n```",
        f"THOUGHT: I am done.\n\n```mswea_bash_command\necho {SUBMIT}\n```",
    ),
    TextForm(
        SUBMIT,
        lambda task: f"THOUGHT: I write it.\n\n```bash\n{task.command}\n```",
        f"THOUGHT: I am done.\n\n```bash\necho {SUBMIT}\n```",
    ),
    TextForm(
        "</code>",
        lambda task: f"Thought: I write it.\n<code>\nprint(write_file({str(task.path)!r}, {TEXT!r}))\n</code>",
        f"Thought: I am done.\n<code>\nfinal_answer({DONE!r})\n</code>",
    ),
    TextForm("<<<<<<< SEARCH", lambda task: f"{NAME}\n```\n<<<<<<< SEARCH\n=======\n{TEXT}>>>>>>> REPLACE\n```", DONE),
    TextForm("*file listing*", lambda task: f"{NAME}\n```\n{TEXT}```", DONE),
)


def plan_answer(request: GenerationRequest, task: Task) -> str:
    """What the model writes, in the syntax of Hermes and Qwen where it calls a tool."""
    if request.output.kind in ("json_schema", "json_object"):
        return json.dumps(fill(request.output.schema or {}, "", task))
    done = task.path.exists()
    told = "\n".join(message.content or "" for message in request.messages)
    if request.tools:
        call = _end_call(request.tools, task, told) if done else _write_call(request.tools, task)
        if call is not None:
            return call
    else:
        form = next((form for form in TEXT_FORMS if form.marker in told), None)
        if form is not None:
            return form.end if done else form.act(task)
    return DONE


def _properties(tool: ToolSpec) -> Mapping[str, Any]:
    return tool.parameters.get("properties") or {}


def _write_call(tools: Sequence[ToolSpec], task: Task) -> str | None:
    """A call that writes the file: by a tool that takes a path and a content, else by a command."""
    writers = [t for t in tools if _properties(t).keys() & _PATHS and _properties(t).keys() & _CONTENTS]
    writers.sort(key=lambda tool: not re.search("write|create", tool.name, re.IGNORECASE))
    runners = [t for t in tools if _properties(t).keys() & _COMMANDS]
    chosen = next(iter([*writers, *runners]), None)
    return None if chosen is None else _call(chosen, task)


def _end_call(tools: Sequence[ToolSpec], task: Task, told: str) -> str | None:
    """A call of the tool that ends the agent's work, where it has one."""
    chosen = next((tool for tool in tools if tool.name in _ENDS), None)
    if chosen is not None:
        return _call(chosen, task)
    runner = next((tool for tool in tools if _properties(tool).keys() & _COMMANDS), None)
    return _call(runner, task, f"echo {SUBMIT}") if runner is not None and SUBMIT in told else None


def _call(tool: ToolSpec, task: Task, command: str | None = None) -> str:
    """The call, its arguments in the schema's order: those required, and those the task needs."""
    wanted = set(tool.parameters.get("required") or ()) | (_PATHS | _CONTENTS | _COMMANDS)
    arguments = {
        name: fill(schema, name, task, command) for name, schema in _properties(tool).items() if name in wanted
    }
    written = json.dumps({"name": tool.name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


def fill(schema: Any, name: str, task: Task, command: str | None = None) -> Any:
    """A value for a schema: the task's own where the name says so, else the plainest there is."""
    schema = schema if isinstance(schema, Mapping) else {}
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return fill(schema[several][0], name, task, command)
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "array":
        if name in _COMMANDS:
            return ["bash", "-lc", command or task.command]
        return [fill(schema.get("items"), name, task, command)] * int(schema.get("minItems", 0))
    if kind == "object":
        needed = schema.get("required") or ()
        return {key: fill(inner, key, task) for key, inner in (schema.get("properties") or {}).items() if key in needed}
    if kind != "string":
        return {"boolean": False, "null": None}.get(kind, schema.get("minimum", 1))
    if name in _COMMANDS:
        return command or task.command
    return str(task.path) if name in _PATHS else TEXT if name in _CONTENTS else DONE


def rest_of(text: str, written: str) -> str:
    """What of `text` is still to be written; white space may differ, as a grammar may have it."""
    place = 0
    for char in written:
        if char.isspace() and not text[place : place + 1].isspace():
            continue
        while not char.isspace() and text[place : place + 1].isspace():
            place += 1
        place += 1
    return text[place:]


class TaskBackend(ScriptedBackend):
    """Favours, after each noted prompt, the tokens of its answer; anything else gets the end of the turn."""

    def __init__(self, tokenizer: Any, **limits: Any) -> None:
        super().__init__(script=self._next, **limits)
        self.tokenizer = tokenizer
        self.answers: dict[tuple[int, ...], str] = {}  # by prompt; written by other threads than the engine's

    def _next(self, tokens: tuple[int, ...]) -> int:
        for length in range(len(tokens), 0, -1):
            answer = self.answers.get(tokens[:length])
            if answer is not None:
                left = rest_of(answer, self.tokenizer.decode(tokens[length:], special=True))
                return int(self.tokenizer.encode(left, continues=True, special=True)[0]) if left else self._end
        return self._end

    @property
    def _end(self) -> int:
        return int(self.tokenizer.eos_id)

    def _row(self, tokens: tuple[int, ...], seed: int) -> Any:
        row = np.zeros(self.limits.n_vocab, np.float32)
        row[self._end] = 30.0
        row[self._next(tokens)] = 60.0
        return row


def install(task: Task, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Put the scripted backend under whatever model is loaded from now on in this process."""
    from phobos.engine import model
    from phobos.gguf.tokenizer import load_tokenizer
    from phobos.host.machine import read_memory
    from phobos.kernels.model_info import describe_model
    from phobos.kernels.placing import capacity, opening

    prepare = model.Model.prepare

    def open_backend(program: Any, gguf: Any, settings: Any, progress: Any) -> Any:
        limits = capacity.plan_limits(program, settings, read_memory().available)
        sizes = {name: getattr(limits, name) for name in ("n_vocab", "n_ctx", "n_slots", "max_rows")}
        backend = TaskBackend(load_tokenizer(gguf), **sizes)
        return backend, describe_model(gguf, program, backend)

    def note(self: Any, request: GenerationRequest, **options: Any) -> Any:
        prepared = prepare(self, request, **options)
        self.backend.answers[prepared.tokens] = plan_answer(request, task)
        return prepared

    put(opening, "open_backend", open_backend)
    put(model.Model, "prepare", note)


if __name__ == "__main__":
    from phobos import cli

    install(Task(Path(os.environ["TASK_FOLDER"])))
    sys.exit(cli.main())
