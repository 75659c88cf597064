"""The queue and the server's life: loading, waiting, limits, cancels, failures, draining."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from doubles.scripted_engine import chat, encode, endless, eventually, finished, parrot, say, with_slots
from phobos.chat.events import Failed, TextDelta
from phobos.errors import FileError, PhobosError, UnavailableError
from phobos.http import generation
from phobos.http.admission import Want, plan_admissions

CHAT = "/v1/chat/completions"


def any_slot(n=1):
    return Want(n, None)


def pinned(slot):
    return Want(1, slot)


@pytest.mark.parametrize(
    ("wants", "n_free", "busy", "admitted"),
    [
        ([any_slot()], 0, {0}, []),
        ([any_slot(), any_slot()], 1, {0}, [0]),
        ([pinned(0), any_slot()], 1, {0}, [1]),  # the pinned one waits, a free slot it does not want is given away
        ([pinned(1), any_slot()], 1, {0}, [0]),
        ([any_slot(2), any_slot()], 1, {0}, []),  # an earlier request for any slot comes before all later ones
        ([any_slot(2), pinned(1)], 1, {0}, []),
        ([pinned(0), pinned(0), pinned(1)], 1, {0}, [2]),
        ([pinned(1), pinned(1)], 2, set(), [0]),  # one slot, two who want it
        ([any_slot(3)], 3, set(), [0]),
        ([Want(2, 1), any_slot()], 1, {0}, []),  # its slot is free: once a second place is, its turn has come
        ([Want(2, 0), any_slot()], 1, {0}, [1]),
    ],
)
def test_the_rule_of_admission(wants, n_free, busy, admitted):
    assert plan_admissions(wants, n_free, frozenset(busy)) == admitted


def in_background(pool, server, body):
    return pool.submit(lambda: server.post(CHAT, body))


def test_requests_wait_through_loading(serve):
    server = serve(load=False, max_queue=60)
    with ThreadPoolExecutor(47) as pool:
        waiting = [in_background(pool, server, chat(f"request {i}")) for i in range(47)]
        eventually(lambda: server.counters.queue_depth == 47)
        assert server.get("/").status == 200
        health = server.get("/health")
        assert health.status == 503 and health.json["status"] == "loading"
        server.listener.attach(server.engine)
        texts = [future.result().json["choices"][0]["message"]["content"] for future in waiting]
    assert texts == [f"request {i}" for i in range(47)]


def test_while_loading_the_queue_is_bounded_too(serve):
    server = serve(load=False, max_queue=8)
    with ThreadPoolExecutor(47) as pool:
        waiting = [in_background(pool, server, chat(f"request {i}")) for i in range(47)]
        eventually(lambda: sum(future.done() for future in waiting) == 39)
        server.listener.attach(server.engine)
        replies = [future.result() for future in waiting]
    refused = [reply for reply in replies if reply.status == 429]
    assert len(refused) == 39 and sum(reply.status == 200 for reply in replies) == 8
    assert all(r.error["code"] == "queue_full" and int(r.headers["retry-after"]) > 0 for r in refused)
    assert server.counters.requests_rejected == 39


def test_the_models_route_waits_for_the_model(serve):
    server = serve(load=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: server.get("/v1/models"))
        time.sleep(0.05)
        assert not waiting.done()
        server.listener.attach(server.engine)
        assert waiting.result().json["data"][0]["id"] == "GGUF, scripted"


def test_a_load_that_fails_answers_all_who_wait(serve):
    server = serve(load=False)
    with ThreadPoolExecutor(3) as pool:
        waiting = [in_background(pool, server, chat(stream=stream)) for stream in (True, False)]
        models = pool.submit(lambda: server.get("/v1/models"))
        eventually(lambda: server.counters.queue_depth == 2)
        server.listener.fail(FileError("the file is cut short: fetch it again"))
        replies = [future.result() for future in waiting] + [models.result()]
    for reply in [*replies, server.post(CHAT, chat())]:
        assert reply.status == 503 and reply.error["code"] == "engine_unavailable"
        assert "cut short" in reply.error["message"]
    health = server.get("/health")
    assert health.status == 503 and health.json["status"] == "error" and "cut short" in health.json["error"]


def test_a_refusal_is_a_log_line_that_names_the_flag(serve, caplog):
    caplog.set_level("INFO", "phobos.http")
    server = serve(endless(), max_queue=0, max_body_bytes=1000, queue_timeout_s=0.1)
    with server.connect() as running:
        running.send(encode("POST", CHAT, chat()))
        eventually(lambda: server.engine.running)
        assert server.post(CHAT, chat()).status == 429
        server.listener._generations.queue.max_queue = 1
        assert server.post(CHAT, chat()).status == 429
    assert server.post(CHAT, chat("x" * 2000)).status == 413
    for flag in ("--max-queue", "--queue-timeout", "--max-body"):
        assert sum(flag in message for message in caplog.messages) == 1


def test_the_limit_counts_before_tokenizing(serve):
    server = serve(endless(), max_queue=1)
    with server.connect() as running, server.connect() as queued:
        running.send(encode("POST", CHAT, chat("first")))
        eventually(lambda: server.engine.running)
        queued.send(encode("POST", CHAT, chat("second")))
        eventually(lambda: server.counters.queue_depth == 1)
        for stream in (True, False):
            reply = server.post(CHAT, chat("third", stream=stream))
            assert reply.status == 429 and reply.error["code"] == "queue_full"
            assert reply.error["type"] == "rate_limit_error" and "retry-after" in reply.headers
        assert len(server.engine.model.prepared) == 1


def test_a_full_queue_of_nobody_lets_a_free_slot_be_taken(serve):
    server = serve(max_queue=0)
    assert server.post(CHAT, chat("free")).status == 200
    server.engine.script = endless()
    with server.connect() as running:
        running.send(encode("POST", CHAT, chat()))
        eventually(lambda: server.engine.running)
        assert server.post(CHAT, chat()).status == 429


def test_pinned_to_a_busy_slot_without_a_queue_is_refused_though_another_is_free(serve):
    server = serve(endless(), with_slots(2), max_queue=0)
    with server.connect() as running:
        running.send(encode("POST", CHAT, chat(cache_slot=1)))
        eventually(lambda: server.engine.running)
        assert server.post(CHAT, chat(cache_slot=1)).status == 429
        server.engine.script = parrot
        assert server.post(CHAT, chat(cache_slot=0)).status == 200
    wrong = server.post(CHAT, chat(cache_slot=2))
    assert wrong.status == 400 and wrong.error["param"] == "cache_slot"


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_too_long_is_told(serve, stream):
    server = serve(endless(), queue_timeout_s=0.2)
    with server.connect() as running:
        running.send(encode("POST", CHAT, chat()))
        eventually(lambda: server.engine.running)
        reply = server.post(CHAT, chat(stream=stream))
        assert reply.status == 429 and reply.error["code"] == "queue_timeout" and "retry-after" in reply.headers


def test_first_come_first_served(serve):
    order = []

    def script(request, tokens, choice):
        order.append(request.messages[-1].content)
        yield 0.02
        yield from parrot(request, tokens, choice)

    server = serve(script)
    with ThreadPoolExecutor(5) as pool:
        futures = []
        for index in range(5):
            futures.append(in_background(pool, server, chat(str(index))))
            eventually(lambda n=index: server.counters.requests_received == n + 1)
        assert all(future.result().status == 200 for future in futures)
    assert order == ["0", "1", "2", "3", "4"]
    assert int(futures[-1].result().headers["x-phobos-queue-wait-ms"]) > 20


def test_a_queued_client_that_leaves_never_starts_and_disturbs_nobody(serve):
    server = serve(endless(), with_slots(2))
    clients = [server.connect() for _ in range(4)]
    for index, client in enumerate(clients):
        client.send(encode("POST", CHAT, chat(str(index), stream=bool(index % 2))))
        eventually(lambda n=index: server.counters.requests_received == n + 1)
    eventually(lambda: len(server.engine.running) == 2)
    clients[2].socket.close()
    eventually(lambda: server.counters.queue_depth == 1)
    assert len(server.engine.running) == 2 and server.engine.cancelled == 0
    clients[0].socket.close()
    eventually(lambda: len(server.engine.submitted) == 3)
    said = {request.messages[-1].content for request in server.engine.submitted}
    assert said == {"0", "1", "3"}


def test_a_client_that_leaves_during_preparation_never_starts(serve):
    server = serve(model=with_slots(1, prepare_s=0.3))
    with server.connect() as client:
        client.send(encode("POST", CHAT, chat()))
        eventually(lambda: server.engine.model.prepared)
    eventually(lambda: server.listener.n_connections == 0)
    time.sleep(0.4)
    assert not server.engine.submitted
    assert server.post(CHAT, chat("next")).status == 200


def test_only_short_prompts_that_are_quick_are_prepared_on_the_loop(serve, monkeypatch):
    model = with_slots(1)
    places, naps = [], [0.0]
    prepare = type(model).prepare
    monkeypatch.setattr(generation, "QUICK_S", 0.1)

    def watched(self, request, **options):
        places.append(threading.current_thread().name.partition("_")[0])
        time.sleep(naps[0])
        return prepare(self, request, **options)

    monkeypatch.setattr(type(model), "prepare", watched)
    server = serve(model=model)
    beside, on_loop = "phobos-prepare", "phobos-http"

    def asked(body, path=CHAT):
        places.clear()
        assert server.post(path, body).status == 200
        return places

    tool = {"type": "function", "function": {"name": "f"}}
    many = [{"role": role, "content": "a"} for role in ["user", "assistant"] * 4 + ["user"]]
    assert asked(chat("first")) == [beside], "how long it takes is not known yet"
    assert asked(chat("second")) == [on_loop]
    assert asked({"prompt": "short", "max_tokens": 1}, "/v1/completions") == [on_loop]
    assert asked({"prompt": ["one", "two"], "max_tokens": 1}, "/v1/completions") == [beside] * 2
    assert asked(chat("long" * 300)) == [beside]
    assert asked({"messages": many}) == [beside]
    assert asked({**chat("tools"), "tools": [tool]}) == [beside]
    naps[0] = 0.15
    assert asked(chat("slow")) == [on_loop]
    assert asked(chat("slow")) == [beside]
    naps[0] = 0.0
    assert asked(chat("quick")) == [beside]
    assert asked(chat("quick")) == [on_loop]


def test_heartbeats_before_a_slow_first_token(serve):
    server = serve(say("at last", pause_s=0.25), heartbeat_s=0.05)
    with server.connect() as client:
        client.send(encode("POST", CHAT, chat(stream=True)))
        reply = client.read()
    assert reply.body.count(b": waiting") >= 3
    assert reply.events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert reply.events[-1] == "[DONE]"


def test_heartbeats_while_queued_and_while_loading(serve):
    server = serve(load=False, heartbeat_s=0.05)
    with server.connect() as client:
        client.send(encode("POST", CHAT, chat("patience", stream=True)))
        client.read_until(b": waiting\n\n")
        client.read_until(b": waiting\n\n")
        server.listener.attach(server.engine)
        rest = client.read_until(b"[DONE]")
    assert b"patience" in rest


def test_a_refusal_after_heartbeats_is_one_error_event(serve):
    server = serve(endless(), heartbeat_s=0.05, queue_timeout_s=0.3)
    with server.connect() as running:
        running.send(encode("POST", CHAT, chat()))
        eventually(lambda: server.engine.running)
        reply = server.post(CHAT, chat(stream=True))
    assert reply.status == 200
    assert reply.events[0]["error"]["code"] == "queue_timeout" and reply.events[1:] == ["[DONE]"]


def failing(error, *before):
    def script(request, tokens, choice):
        for text in before:
            yield TextDelta(text)
        yield Failed(error)

    return script


def test_a_failure_before_output_has_a_status(serve):
    server = serve(failing(PhobosError("secret path /home/me")))
    for stream in (False, True):
        reply = server.post(CHAT, chat(stream=stream))
        assert reply.status == 500 and reply.error["code"] == "engine_error"
        assert b"secret" not in reply.body


def test_a_failure_after_output_is_one_error_event(serve):
    server = serve(failing(PhobosError("secret"), "so far", " so good"))
    events = server.post(CHAT, chat(stream=True)).events
    assert events[-1] == "[DONE]" and events[-2]["error"]["code"] == "engine_error"
    assert sum("error" in event for event in events[:-1]) == 1
    assert "secret" not in str(events)
    assert server.post(CHAT, chat()).status == 500


def test_internal_errors_are_masked(serve):
    server = serve()
    reply = server.post(CHAT, chat("break the server"))
    assert reply.status == 500 and reply.error["code"] == "internal_error" and b"secret" not in reply.body
    assert server.post(CHAT, chat("still here")).status == 200


def test_an_engine_that_dies_is_noticed(serve):
    server = serve(endless(), max_queue=8)
    with ThreadPoolExecutor(2) as pool:
        running = in_background(pool, server, chat())
        eventually(lambda: server.engine.running)
        queued = in_background(pool, server, chat())
        eventually(lambda: server.counters.queue_depth == 1)
        server.engine.die(UnavailableError("out of memory"))
        assert {running.result().status, queued.result().status} == {503}
    assert server.get("/health").json["status"] == "error"
    assert server.post(CHAT, chat()).error["code"] == "engine_unavailable"


def test_shutdown_lets_running_requests_end(serve):
    server = serve(say("a", "b", "c", pause_s=0.1))
    with ThreadPoolExecutor(2) as pool:
        running = in_background(pool, server, chat(stream=True))
        eventually(lambda: server.engine.running)
        queued = in_background(pool, server, chat())
        eventually(lambda: server.counters.queue_depth == 1)
        idle = server.connect()
        assert idle.ask("GET", "/").status == 200
        server.listener.close(5)
        assert idle.at_end()
        assert running.result().events[-1] == "[DONE]" and b'"c"' in running.result().body
        assert queued.result().status == 503
    with pytest.raises(OSError):
        server.connect()


def test_shutdown_ends_what_does_not_end(serve):
    server = serve(endless(), with_slots(2))
    with ThreadPoolExecutor(2) as pool:
        stream = in_background(pool, server, chat(stream=True))
        whole = in_background(pool, server, chat())
        eventually(lambda: len(server.engine.running) == 2)
        began = time.monotonic()
        server.listener.close(0.2)
        assert time.monotonic() - began < 2
        assert stream.result().events[-1] == "[DONE]" and "error" in stream.result().events[-2]
        assert whole.result().status == 503
    server.listener.close(0)
    eventually(lambda: not server.engine.running)
    assert "phobos-http" not in [thread.name for thread in threading.enumerate()]


def test_a_second_signal_ends_at_once(serve):
    server = serve(endless())
    with server.connect() as client:
        client.send(encode("POST", CHAT, chat(stream=True)))
        client.read_until(b"tick")
        first = threading.Thread(target=server.listener.close, args=(60,))
        first.start()
        time.sleep(0.1)
        began = time.monotonic()
        server.listener.close(0)
        first.join(5)
        assert time.monotonic() - began < 2 and not first.is_alive()


def metric(server, name):
    lines = server.get("/metrics").body.decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))


def test_the_counting_rules(serve):
    server = serve(max_queue=0, queue_timeout_s=0.1)
    prefix = "phobos_scheduler_"
    assert server.post(CHAT, chat()).status == 200
    assert server.post(CHAT, {"messages": 5}).status == 400
    server.engine.script = failing(PhobosError("x"))
    assert server.post(CHAT, chat()).status == 500
    server.engine.script = endless()
    with server.connect() as client:
        client.send(encode("POST", CHAT, chat(stream=True)))
        client.read_until(b"tick")
        assert metric(server, prefix + "active") == 1
        assert server.post(CHAT, chat()).status == 429
    eventually(lambda: metric(server, prefix + "cancelled_total") == 1)
    expected = {"admitted": 3, "completed": 1, "failed": 1, "rejected": 1, "timed_out": 0, "cancelled": 1}
    assert {name: metric(server, f"{prefix}{name}_total") for name in expected} == expected
    assert metric(server, prefix + "active") == 0 and metric(server, prefix + "capacity") == 1
    assert metric(server, prefix + "queue_wait_seconds_count") == 3
    assert metric(server, prefix + "slot_duration_seconds_count") == 3
    assert metric(server, prefix + "first_output_seconds_count") == 2
    assert metric(server, prefix + "engine_call_seconds_count") == 3
    scheduler = server.get("/health").json["scheduler"]
    assert {name: scheduler[name] for name in expected} == expected


def test_a_cancel_before_admission_is_no_admission(serve):
    server = serve(load=False)
    with server.connect() as client:
        client.send(encode("POST", CHAT, chat()))
        eventually(lambda: server.counters.queue_depth == 1)
    eventually(lambda: metric(server, "phobos_scheduler_cancelled_total") == 1)
    assert metric(server, "phobos_scheduler_admitted_total") == 0
    assert metric(server, "phobos_scheduler_queue_wait_seconds_count") == 0


def test_choices_give_their_places_back_one_by_one(serve):
    def script(request, tokens, choice):
        if choice:
            yield 0.3
        yield TextDelta("x")
        yield finished(tokens, 1)

    server = serve(script, with_slots(2))
    with ThreadPoolExecutor(1) as pool:
        pair = in_background(pool, server, chat(n=2))
        eventually(lambda: server.engine.finished == 1)
        assert server.post(CHAT, chat()).status == 200
        assert not pair.done()
        assert len(pair.result().json["choices"]) == 2
