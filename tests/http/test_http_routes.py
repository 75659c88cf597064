"""The routes as a client sees them."""

from __future__ import annotations

from doubles.scripted_engine import chat


def test_a_plain_chat(serve):
    server = serve()
    reply = server.post("/v1/chat/completions", chat("hello there friend", model="any"))
    assert reply.status == 200
    body = reply.json
    assert body["choices"][0]["message"]["content"] == "hello there friend"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["model"] == "any"
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_streamed_chat(serve):
    server = serve()
    reply = server.post(
        "/v1/chat/completions", chat("hello there", stream=True, stream_options={"include_usage": True})
    )
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = reply.events
    assert events[-1] == "[DONE]"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-2]) == "hello there"
    assert events[-3]["choices"][0]["finish_reason"] == "stop"
    assert events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == 2


def test_root_health_models(serve):
    server = serve()
    assert server.get("/").body == b"phobos-inference"
    assert server.get("/health").json["status"] == "ok"
    assert server.get("/v1/models").json["data"][0]["id"] == "GGUF, scripted"
    assert server.post("/v1/completions", {"prompt": "a b"}).json["choices"][0]["text"] == "a b"
