"""What is promised over HTTP, kept by the real engine and the real model: a tiny one on a real socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.scripted_engine import RawClient, Reply, chat
from models.tiny_models import RECIPES, write_tiny_model
from phobos.chat.template_sources import read_template
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.http.listener import Listener
from phobos.runtime import start_engine
from phobos.settings import EngineSettings, ServeSettings

INFILL = (297, 298, 299)  # prefix, suffix, middle: spare tokens of the tiny vocabulary
INFILL_KEYS = {
    f"tokenizer.ggml.{name}_token_id": token
    for name, token in zip(("fim_pre", "fim_suf", "fim_mid"), INFILL, strict=True)
}
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TOOLED = "{{ tools | tojson }}" + PLAIN
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


class Served:
    """A model behind a listener."""

    def __init__(self, path: Path, **settings: Any) -> None:
        counters = Counters()
        self.listener = Listener(ServeSettings(listen="127.0.0.1:0"), counters)
        self.listener.bind()
        self.listener.start()
        engine_settings = EngineSettings(path, backend="reference", n_ctx=600, n_slots=2, **settings)
        self.engine: Engine = start_engine(engine_settings, counters, lambda progress: None)
        self.listener.attach(self.engine)

    def post(self, path: str, body: Any) -> Reply:
        return self._ask("POST", path, body)

    def capabilities(self) -> list[str]:
        return self._ask("GET", "/v1/models", None).json["data"][0]["capabilities"]

    def _ask(self, method: str, path: str, body: Any) -> Reply:
        host, _, port = self.listener.address.removeprefix("http://").rpartition(":")
        with RawClient((host, int(port)), timeout_s=60) as client:
            return client.ask(method, path, body)

    def close(self) -> None:
        self.listener.close(0)
        self.engine.close()


@pytest.fixture
def serve_model(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """`serve_model({metadata}, **settings)` serves a tiny model whose file has these keys too."""
    served: list[Served] = []

    def start(metadata: dict[str, Any] | None = None, **settings: Any) -> Served:
        path = write_tiny_model(RECIPES["llama"], tmp_path / "m.gguf", metadata=metadata or {})
        served.append(Served(path, **settings))
        return served[-1]

    yield start
    for each in served:
        each.close()


def test_a_suffix_is_filled_in_by_a_model_with_infill_tokens(serve_model: Callable[..., Served]) -> None:
    server = serve_model(INFILL_KEYS)
    assert "infill" in server.capabilities()
    fields = {"max_tokens": 5, "temperature": 0}
    filled = server.post("/v1/completions", {"prompt": "the", "suffix": "an", **fields})
    tokenizer = server.engine.model.tokenizer
    before, after, middle = INFILL
    bos, *prompt = tokenizer.encode("the", bos=True)
    tokens = [bos, before, *prompt, after, *tokenizer.encode("an"), middle]
    spelled = server.post("/v1/completions", {"prompt": tokens, **fields})
    assert filled.status == 200 and filled.json["usage"]["prompt_tokens"] == len(tokens)
    assert filled.json["choices"][0]["text"] == spelled.json["choices"][0]["text"]


def test_a_suffix_is_refused_by_name_where_there_are_no_infill_tokens(serve_model: Callable[..., Served]) -> None:
    server = serve_model()
    refused = server.post("/v1/completions", {"prompt": "the", "suffix": "an"})
    assert refused.status == 400 and refused.error["param"] == "suffix"
    assert "infill" not in server.capabilities()


def test_offered_tools_are_shown_by_the_files_own_tool_template(serve_model: Callable[..., Served]) -> None:
    server = serve_model({"tokenizer.chat_template": PLAIN, "tokenizer.chat_template.tool_use": TOOLED})
    asked = chat("the tea", max_tokens=1)
    prompts = [
        server.post("/apply-template", {"messages": asked["messages"], **tools}).json["prompt"]
        for tools in ({}, {"tools": [TOOL]})
    ]
    assert prompts[0].removeprefix("<s>").strip() == "[user]the tea"
    assert '"name": "ping"' in prompts[1] and prompts[1].endswith("[user]the tea")
    counts = [server.post("/v1/chat/completions", {**asked, **tools}) for tools in ({}, {"tools": [TOOL]})]
    plain, tooled = (reply.json["usage"]["prompt_tokens"] for reply in counts)
    assert tooled > plain + 20


def test_a_file_with_a_tool_template_only_has_a_chat_format(serve_model: Callable[..., Served]) -> None:
    server = serve_model({"tokenizer.chat_template.tool_use": PLAIN})
    assert "chat" in server.capabilities()
    assert server.post("/v1/chat/completions", chat("the tea", max_tokens=1)).status == 200


def test_a_named_template_gives_a_file_without_one_a_chat_format(serve_model: Callable[..., Served]) -> None:
    without = serve_model()
    assert "chat" not in without.capabilities()
    refused = without.post("/v1/chat/completions", chat("the tea"))
    assert refused.status == 400 and "--chat-template" in refused.error["message"]
    server = serve_model(chat_template=read_template("chatml"))
    assert "chat" in server.capabilities()
    prompt = server.post("/apply-template", chat("the tea")).json["prompt"]
    assert "<|im_start|>user\nthe tea<|im_end|>" in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"reasoning": {"generate_summary": "auto"}}, "reasoning.generate_summary"),
    ],
)
def test_responses_fields_that_cannot_be_honoured_are_refused(
    serve_model: Callable[..., Served], fields: dict[str, Any], param: str
) -> None:
    server = serve_model({"tokenizer.chat_template": PLAIN})
    refused = server.post("/v1/responses", {"input": "the tea", **fields})
    assert refused.status == 400
    assert (refused.error["param"], refused.error["code"]) == (param, "unsupported_parameter")
