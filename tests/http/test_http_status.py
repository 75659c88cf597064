"""The server about itself, and llama-server's routes."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from doubles.scripted_engine import chat, encode, endless, eventually, with_slots
from phobos.counters import RequestInfo, SlotInfo


def test_models(serve):
    server = serve(model=with_slots(2, n_ctx=512))
    for path in ("/v1/models/GGUF,%20scripted", "/models/GGUF,%20scripted"):
        one = server.get(path).json
        assert one == server.get("/v1/models").json["data"][0]
    assert one["object"] == "model" and one["context_length"] == 512 and one["created"] == 1_700_000_000
    assert {"text", "chat", "tools", "reasoning"} <= set(one["capabilities"]) and "infill" not in one["capabilities"]
    lost = server.get("/v1/models/other")
    assert lost.status == 404 and lost.error["code"] == "model_not_found"


def test_a_model_by_its_own_id(serve):
    server = serve(model_id="org/name")
    assert server.get("/v1/models").json["data"][0]["id"] == "org/name"
    assert server.get("/v1/models/org/name").status == 200
    assert server.get("/v1/models/org%2Fname").status == 200


def test_metrics_are_prometheus_text(serve):
    server = serve()
    server.post("/v1/completions", {"prompt": "x"})
    reply = server.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in text_string_to_metric_families(reply.body.decode())}
    assert families["phobos_scheduler_admitted"].type == "counter"
    buckets = [s for s in families["phobos_scheduler_queue_wait_seconds"].samples if s.name.endswith("_bucket")]
    bounds = [s.labels["le"] for s in buckets]
    assert bounds == ["0.001", "0.01", "0.05", "0.1", "0.5", "1", "5", "10", "30", "60", "300", "+Inf"]
    assert buckets[-1].value == 1
    for name in ("active", "queued", "capacity", "max_queue"):
        assert families[f"phobos_scheduler_{name}"].type == "gauge"
    for name in ("completed", "failed", "rejected", "timed_out", "cancelled"):
        assert f"phobos_scheduler_{name}" in families
    assert {"phobos_prompt_tokens", "phobos_generated_tokens", "phobos_prompt_tokens_reused"} <= families.keys()


def test_metrics_take_no_slot_and_need_no_model(serve):
    assert serve(load=False).get("/metrics").status == 200
    server = serve(endless())
    with server.connect() as client:
        client.send(encode("POST", "/v1/completions", {"prompt": "x", "stream": True}))
        client.read_until(b"tick")
        assert b"phobos_scheduler_active 1.0" in server.get("/metrics").body


def test_slots_and_props(serve):
    server = serve(model=with_slots(2))
    server.counters.slots = (SlotInfo(0, 17, True, 0.0), SlotInfo(1, 5, False, 0.0))
    server.counters.live = (RequestInfo("req_9", "decode", 0, 12, 4, 12, 5, 0.0),)
    slots = server.get("/slots").json
    assert [slot["id"] for slot in slots] == [0, 1] and [slot["n_tokens"] for slot in slots] == [17, 5]
    assert slots[0]["is_processing"] and slots[0]["id_task"] == "req_9" and slots[0]["n_decoded"] == 5
    assert not slots[1]["is_processing"]
    props = server.get("/props").json
    assert props["total_slots"] == 2 and props["default_generation_settings"]["n_ctx"] == 4096
    assert props["chat_template"] == "{{ messages }}"
    assert props["x_phobos"] == {"dialect": with_slots(2).info.dialect}


def test_tokens_there_and_back(serve):
    server = serve()
    ids = server.post("/tokenize", {"content": "hé"}).json["tokens"]
    assert ids == [104, 195, 169]
    assert server.post("/detokenize", {"tokens": ids}).json == {"content": "hé"}
    assert server.post("/tokenize", {"content": "a", "add_special": True}).json["tokens"] == [256, 97]
    pieces = server.post("/tokenize", {"content": "hé", "with_pieces": True}).json["tokens"]
    assert pieces[0] == {"id": 104, "piece": "h"} and pieces[1] == {"id": 195, "piece": [195]}
    assert server.post("/apply-template", {"messages": [{"role": "user", "content": "hi"}]}).json == {
        "prompt": "<user>hi"
    }


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
    ],
)
def test_wrong_input_is_400(serve, path, body, param):
    reply = serve().post(path, body)
    assert reply.status == 400 and reply.error["param"].startswith(param)


def test_health_counts(serve):
    server = serve()
    server.post("/v1/chat/completions", chat())
    health = eventually(lambda: server.get("/health").json)
    assert health["scheduler"]["completed"] == 1 and health["model"] == "GGUF, scripted"
