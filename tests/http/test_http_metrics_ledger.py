"""The metrics agree with a ledger the test keeps, scraped while the model loads and while streams run; and the
published dashboard asks only for what is there."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from doubles.scripted_engine import chat, encode, endless, eventually, say, with_slots
from phobos.chat.events import Failed
from phobos.errors import PhobosError

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def scrape(server):
    text = server.get("/metrics").body.decode()
    return {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples if not s.labels}


def counts(server):
    found = scrape(server)
    names = ("admitted", "completed", "failed", "cancelled", "rejected")
    return {name: int(found[f"phobos_scheduler_{name}_total"]) for name in names}


def test_counts_agree_with_a_ledger_through_eight_streams(serve):
    server = serve(say("a", "b", pause_s=0.02), with_slots(4), load=False, max_queue=16)
    assert scrape(server)["phobos_scheduler_capacity"] == 0 and scrape(server)["phobos_model_loaded"] == 0
    replies = []

    def stream():
        replies.append(server.post("/v1/chat/completions", chat(stream=True)))

    threads = [threading.Thread(target=stream) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: scrape(server)["phobos_scheduler_queued"] == 8)
    assert counts(server)["admitted"] == 0
    server.listener.attach(server.engine)
    while any(thread.is_alive() for thread in threads):
        found = scrape(server)
        assert found["phobos_scheduler_active"] <= 4 and found["phobos_scheduler_capacity"] == 4
    for thread in threads:
        thread.join()
    ledger = {"admitted": 8, "completed": 8, "failed": 0, "cancelled": 0, "rejected": 0}
    assert counts(server) == ledger and all(reply.status == 200 for reply in replies)

    server.post("/v1/messages", {"max_tokens": 3, "messages": [{"role": "user", "content": "x"}]})
    server.post("/v1/responses", {"input": "x"})
    server.post("/v1/systemone", {"state": "s", "questions": {"q": {"type": "noul"}}})
    server.post("/v1/messages", {"messages": []})  # refused before the queue: not counted
    server.post("/v1/systemone", {"state": "s"})
    ledger = {**ledger, "admitted": 11, "completed": 11}
    assert counts(server) == ledger

    server.engine.script = lambda request, tokens, choice: iter([Failed(PhobosError("no"))])
    server.post("/v1/messages", {"max_tokens": 3, "messages": [{"role": "user", "content": "x"}]})
    ledger = {**ledger, "admitted": 12, "failed": 1}
    assert counts(server) == ledger

    server.engine.script = endless()
    with server.connect() as leaving:
        leaving.send(encode("POST", "/v1/responses", {"input": "x", "stream": True}))
        eventually(lambda: server.engine.running)
    eventually(lambda: counts(server)["cancelled"] == 1)
    assert counts(server) == {**ledger, "admitted": 13, "cancelled": 1}
    assert scrape(server)["phobos_scheduler_active"] == 0


def test_the_dashboard_asks_for_what_there_is(serve):
    board = json.loads(DASHBOARD.read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"phobos_[a-z_]+", target["expr"])
    }
    server = serve()
    server.counters.model = server.engine.model.info
    text = server.get("/metrics").body.decode()
    told = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert asked and asked <= told
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
