"""What an attacker tried on loopback, each as the kind of thing it is."""

from __future__ import annotations

import logging
import os
import stat
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from doubles.scripted_engine import chat, encode
from phobos.chat.events import TextDelta
from phobos.chat.messages import GenerationRequest, SamplingParams
from phobos.chat.template_sandbox import SandboxedTemplate
from phobos.cli import main
from phobos.commands.parsing import options
from phobos.counters import Counters
from phobos.engine.constrained.binding import Binding
from phobos.engine.slots.archive import Archived
from phobos.engine.slots.slot_actions import SlotActions
from phobos.engine.slots.slot_files import Identity, write_slot_file
from phobos.engine.slots.store import Folder, Store
from phobos.errors import RequestError, UsageError
from phobos.http.listener import Listener
from phobos.http.protocols.conversation import RESERVED_KWARGS
from phobos.http.short_prompts import is_short
from phobos.http.transport.keys import KeyRing, parse_key, read_key_file
from phobos.repl.transcript import write_file
from phobos.settings import ServeSettings

IDENTITY = Identity("m", "c", "v")
CHAT = "/v1/chat/completions"
POSTS = (
    CHAT, "/v1/chat/completions/input_tokens", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/responses", "/v1/embeddings", "/v1/systemone", "/completion", "/embedding", "/tokenize", "/detokenize",
    "/apply-template", "/slots/0?action=erase", "/slots/0?action=save",
)  # fmt: skip
BLANK = ["", " ", "\t\n", "ann:", "ann: ", ":"]


# Keys


@pytest.mark.parametrize("key", BLANK)
def test_a_blank_key_is_refused_wherever_it_comes_from(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match="is empty"):
        parse_key(key)
    for keys in ((key,), ("good", key)):
        with pytest.raises(UsageError, match="is empty"):
            KeyRing(keys)
        with pytest.raises(UsageError, match="is empty"):  # also on all addresses, where it passed for a key
            Listener(ServeSettings(listen="0.0.0.0:0", api_keys=keys), Counters()).bind()


@pytest.mark.parametrize("given", [["--api-key", ""], ["--api-key", "good", "--api-key", " "]])
def test_the_command_line_refuses_a_blank_key(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gguf", "nothing.gguf", "--listen", "0.0.0.0:0", *given]) != 0
    said = capsys.readouterr().err
    assert "API key is empty" in said or "there is no file" in said
    with pytest.raises(UsageError, match="is empty"):
        options._read_keys({"api_key": given[1::2], "api_key_file": None})


def test_nothing_blank_is_ever_compared(serve) -> None:
    server = serve(api_keys=("good",))
    for headers in ({"x-api-key": ""}, {"authorization": "Bearer "}, {"authorization": "Bearer"}):
        assert server.post(CHAT, chat(), headers).status == 401
    ring = KeyRing(("good",))
    assert ring.owner(["", "good"]) == "key 1" and ring.owner([""]) is None
    assert not KeyRing(()) and KeyRing(()).owner([""]) is None


def test_keys_have_names() -> None:
    ring = KeyRing(("ann:secret", "plain", ":with:colons", "ann:other"))
    assert [ring.owner([text]) for text in ("secret", "ann:secret", "other")] == ["ann"] * 3
    assert ring.owner(["plain"]) == "key 2" and ring.owner(["with:colons"]) == "key 3"
    assert ring.owner(["ann"]) is None and ring.owner(["colons"]) is None
    with pytest.raises(UsageError, match="another owner"):
        KeyRing(("ann:secret", "bob:secret"))


def test_a_key_file_is_read_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nann:one\n\n two \n")
    assert read_key_file(path) == ("ann:one", "two")
    began_s = time.monotonic()
    with pytest.raises(UsageError, match="1 MiB"):
        read_key_file(Path("/dev/zero"))
    assert time.monotonic() - began_s < 1
    for text, says in ((b"", "holds no key"), (b"\xff\xfe", "it is no text")):
        path.write_bytes(text)
        with pytest.raises(UsageError, match=says):
            read_key_file(path)


def test_the_log_tells_whose_key_it_was(serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(api_keys=("ann:secret",))
    with caplog.at_level(logging.INFO, "phobos.http"):
        assert server.post(CHAT, chat(), {"x-api-key": "secret"}).status == 200
        assert server.post(CHAT, chat("refuse this"), {"x-api-key": "secret"}).status == 400
    assert caplog.text.count("for ann") == 2 and "secret" not in caplog.text


# Pages

FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost.evil.example"},
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site", "content-type": "application/json"},
    {"sec-fetch-site": "cross-site", "content-type": "application/json"},
]


@pytest.mark.parametrize("path", POSTS)
def test_no_foreign_page_makes_a_server_without_a_key_work(serve, path: str) -> None:
    server = serve()
    for headers in FOREIGN:
        with server.connect() as client:
            reply = client.ask("POST", path, b"{}", {"content-type": "", **headers})
        assert reply.status == 403, headers
    assert not server.engine.model.prepared


def test_pages_of_this_machine_and_of_known_origins_may_ask(serve) -> None:
    local = {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}
    assert serve().post(CHAT, chat(), local).status == 200
    known = {"origin": "https://ui.example", "sec-fetch-site": "cross-site"}
    assert serve(cors_origins=("+https://ui.example",)).post(CHAT, chat(), known).status == 200
    assert serve(cors_origins=("*",)).post(CHAT, chat(), {"origin": "https://any.example"}).status == 200


def test_a_key_is_what_a_page_must_have(serve) -> None:
    server = serve(api_keys=("k",))
    page = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    assert server.post(CHAT, chat(), page).status == 401
    assert server.post(CHAT, chat(), {**page, "x-api-key": "k"}).status == 200


def test_a_body_without_a_type_passes_from_programs_only(serve) -> None:
    server = serve()
    with server.connect() as client:
        assert client.ask("POST", CHAT, chat(), {"content-type": ""}).status == 200
    for browser in ({"origin": "http://localhost:1"}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-mode": "cors"}):
        with server.connect() as client:
            reply = client.ask("POST", CHAT, chat(), {"content-type": "", **browser})
        assert reply.status == 415 and reply.error["code"] == "unsupported_media_type"


def test_the_host_of_an_absolute_target_is_the_host(serve) -> None:
    server = serve()
    for host, status in ((b"evil.example", 403), (b"localhost", 200), (b"", 403)):
        with server.connect() as client:
            client.send(b"GET http://" + host + b"/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert client.read().status == status
    with server.connect() as client:
        client.send(b"GET http://localhost/health HTTP/1.1\r\nhost: evil.example\r\n\r\n")
        assert client.read().status == 200


# What is asked for


@pytest.mark.parametrize(
    ("path", "bias"),
    [
        ("/completion", [["1" * 257, 5]]),
        ("/completion", [["1" * 4_000_000, 5]]),
        ("/completion", [[f"t{i}", 1] for i in range(1025)]),
        ("/completion", {str(i): 1 for i in range(1025)}),
        ("/v1/completions", {str(i): 1 for i in range(1025)}),
    ],
)
def test_biases_are_bounded(serve, path: str, bias: object) -> None:
    reply = serve().post(path, {"prompt": "hello", "logit_bias": bias})
    assert reply.status == 400 and reply.error["param"] == "logit_bias"


def test_nothing_is_tokenized_on_the_loop() -> None:
    """Texts that stand for tokens are worked out where prompts are, however short the prompt."""
    asked = GenerationRequest(request_id="r", prompt="hi", sampling=SamplingParams(text_bias={"a": 1.0}))
    assert not is_short(asked)
    assert is_short(replace(asked, sampling=SamplingParams(logit_bias={1: 1.0})))


@pytest.mark.parametrize("name", sorted(RESERVED_KWARGS))
def test_names_a_template_gets_from_the_server_are_refused(serve, name: str) -> None:
    server = serve()
    for path in (CHAT, "/apply-template", "/v1/chat/completions/input_tokens"):
        reply = server.post(path, chat(chat_template_kwargs={name: 1}))
        assert reply.status == 400 and reply.error["param"] == f"chat_template_kwargs.{name}"


def test_no_name_breaks_a_template() -> None:
    template = SandboxedTemplate("{{ self_ }}{{ here }}")
    for name in ("self", "args", "kwargs", "varargs", "caller", "context", "environment", "not a name", ""):
        assert template.render({"self_": "x", "here": "y", name: "z"}) == "xy"


def test_a_long_model_name_is_not_repeated(serve) -> None:
    server = serve()
    for path, body in ((CHAT, chat()), ("/completion", {"prompt": "x"}), ("/v1/messages", chat(max_tokens=3))):
        reply = server.post(path, body | {"model": "m" * 4_000_000})
        assert reply.status == 400 and len(reply.body) < 1000 and "model" in reply.json["error"]["message"]


def test_a_stream_that_shutdown_ends_is_logged_once(serve, caplog: pytest.LogCaptureFixture) -> None:
    def slow(request, tokens, choice):
        for _ in range(200):
            yield TextDelta("x")
            yield 0.05

    server = serve(slow)
    with caplog.at_level(logging.INFO, "phobos.http"), server.connect() as client:
        client.send(encode("POST", CHAT, chat(stream=True)))
        client.read_until(b"data: ")
        server.listener.close(0)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("req_")]
    assert len(lines) == 1 and "refused: 503" in lines[0]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_what_people_wrote_is_their_own(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = Folder(tmp_path / "a" / "slots")
        store = Store(folder, IDENTITY, bound_bytes=1 << 30)
        contents = Archived(np.arange(9, dtype=np.int32), b"data", {})
        write_slot_file(folder.named("one"), store.identity, contents)
        store.write(contents, wait=True)
        write_file(tmp_path / "a" / "chat.md", "what I said")
        folder.close()
    finally:
        os.umask(before)
    paths = list((tmp_path / "a").rglob("*"))
    assert len(paths) >= 5
    for path in (tmp_path / "a", *paths):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_is_no_file_to_save_to(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "there").mkdir()
    actions = SlotActions(lambda slot, work: pytest.fail("nothing is read out"), 1, Store(folder, IDENTITY, 1 << 20))
    with pytest.raises(RequestError, match="is a folder") as caught:
        actions.save(0, "there")
    assert caught.value.status == 400
    folder.close()


def test_a_grammar_too_large_to_follow_is_the_clients_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    class Matcher:
        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "ParserTooComplex"

    binding = Binding(SimpleNamespace(compute_mask=lambda matcher: None), None, None)  # type: ignore[arg-type]
    binding._matcher = Matcher()
    with pytest.raises(RequestError, match="too large to follow") as caught:
        binding._compute()
    assert caught.value.status == 400 and caught.value.param == "response_format"
