"""System One over HTTP, against the scripted engine: the matrix of refusals, shapes, formulas, the queue."""

from __future__ import annotations

import math

import pytest

from doubles.scripted_engine import chance, encode, endless, eventually, finished, with_slots
from phobos.chat.events import Failed, Scores
from phobos.errors import PhobosError
from phobos.http.protocols.systemone import round_shares

NOUL = {"type": "noul", "instructions": "Is it urgent?"}
CHOICE = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"sales": "buys", "support": None, "legal": "law"},
}
SCORE = {"type": "score", "criteria": ["calm", None, "angry"]}


def decide(server, questions=None, **fields):
    body = {"state": "the printer is on fire", "questions": questions or {"q": NOUL}, **fields}
    return server.post("/v1/systemone", {name: value for name, value in body.items() if value != "absent"})


def test_the_shapes(serve):
    server = serve(model=with_slots(2))
    reply = decide(server, {"z": NOUL, "a": CHOICE, "m": SCORE}, model="any name at all")
    body = reply.json
    assert reply.status == 200 and "x-phobos-queue-wait-ms" in reply.headers
    assert list(body) == ["id", "model", "provider", "answers", "usage"]
    assert (body["model"], body["provider"], body["usage"]["cost"]) == ("any name at all", "phobos", 0)
    answers = body["answers"]
    assert list(answers) == ["z", "a", "m"]
    assert set(answers["z"]) == {"type", "noul"} and 0 <= answers["z"]["noul"] <= 1
    assert set(answers["a"]) == {"type", "choice", "probabilities", "confidence"}
    assert list(answers["a"]["probabilities"]) == ["sales", "support", "legal"]
    assert answers["a"]["choice"] == max(answers["a"]["probabilities"], key=answers["a"]["probabilities"].get)
    assert answers["m"]["legend"] == {"0": "calm", "1": "level 1", "2": "angry"}
    shares = answers["m"]["probabilities"]
    assert list(shares) == ["0", "1", "2"]
    assert answers["m"]["score"] == pytest.approx(shares["1"] + 2 * shares["2"], abs=3e-6)
    for answer in (answers["a"], answers["m"]):
        assert round(sum(answer["probabilities"].values()), 6) == 1
        peak = max(answer["probabilities"].values())
        assert answer["confidence"] == pytest.approx(max(0, (3 * peak - 1) / 2), abs=3e-6)


def test_the_probabilities_are_those_of_the_options(serve):
    server = serve()
    answer = decide(server, {"q": CHOICE}).json["answers"]["q"]
    tokens = server.engine.submitted[0].tokens
    cue = b"one option:"
    end = bytes(tokens[1:]).index(cue) + 1 + len(cue)  # a token a byte, behind BOS
    prompt = tokens[:end]
    weights = {}
    for label in CHOICE["criteria"]:
        tokens = tuple(f" {label}".encode())
        weights[label] = sum(chance(prompt + tokens[:i], t) for i, t in enumerate(tokens))
    greatest = max(weights.values())
    total = sum(math.exp(w - greatest) for w in weights.values())
    for label, weight in weights.items():
        assert answer["probabilities"][label] == pytest.approx(math.exp(weight - greatest) / total, abs=2e-6)


def test_what_the_model_reads(serve):
    server = serve()
    decide(
        server,
        {"q": {**NOUL, "criteria": {"true": "at once", "false": None}}, "c": CHOICE},
        state={"b": [1, "é"], "a": None},
        prefix="You route tickets.",
    )
    texts = [bytes(t for t in r.tokens if t < 256).decode("utf-8", "ignore") for r in server.engine.submitted]
    assert all(t.startswith('You route tickets.\n\nContext:\n{"b": [1, "é"], "a": null}\n\nQuestion: ') for t in texts)
    assert any("Question: Is it urgent?\nyes: at once\nAnswer yes or no:" in t for t in texts)
    assert any("- sales: buys\n- support\n- legal: law\n" in t for t in texts)


def test_usage(serve):
    body = decide(serve(), {"q": NOUL, "c": CHOICE}).json
    assert body["usage"]["output_tokens"] == len(" yes no sales support legal")
    assert body["usage"]["input_tokens"] > body["usage"]["output_tokens"]


def test_one_option_needs_no_pass(serve):
    server = serve()
    questions = {"c": {"type": "choice", "criteria": {"only": None}}, "s": {"type": "score", "criteria": ["x"]}}
    body = decide(server, questions, entropy=True).json
    assert body["answers"]["c"] == {
        "type": "choice",
        "choice": "only",
        "probabilities": {"only": 1.0},
        "confidence": 1.0,
        "entropy": 0.0,
    }
    assert body["answers"]["s"]["score"] == 0 and not server.engine.submitted
    assert body["usage"]["output_tokens"] == 0 and body["usage"]["input_tokens"] > 0


def test_entropy_and_ties(serve):
    server = serve()

    def even(request, tokens, choice):
        yield Scores(tuple(tuple(-1.0 for _ in wanted) for _, wanted in request.targets))
        yield finished(tokens, 0)

    server.engine.score_script = even
    questions = {"c": {"type": "choice", "criteria": {"bb": None, "aa": None}}, "n": NOUL}
    answers = decide(server, questions, entropy=True).json["answers"]
    assert answers["c"]["choice"] == "bb" and answers["c"]["confidence"] == 0 and answers["c"]["entropy"] == 1
    assert answers["n"]["noul"] == pytest.approx(1 / (1 + math.exp(1)), abs=1e-6)  # yes has a token more than no
    mean = decide(server, questions, normalize="mean").json["answers"]
    assert mean["n"] == {"type": "noul", "noul": 0.5}


LABELS = {f"l{i}": None for i in range(256)}


@pytest.mark.parametrize(
    ("fields", "param", "loc"),
    [
        ({"state": "absent"}, "state", ["state"]),
        ({"state": None}, "state", ["state"]),
        ({"state": 5}, "state", ["state"]),
        ({"state": True}, "state", ["state"]),
        ({"questions": None}, "questions", ["questions"]),
        ({"questions": []}, "questions", ["questions"]),
        ({"questions": {}}, "questions", ["questions"]),
        ({"questions": {f"q{i}": NOUL for i in range(65)}}, "questions", ["questions"]),
        ({"questions": {"d": "noul"}}, "questions.d", ["questions", "d"]),
        ({"questions": {"d": {}}}, "questions.d.type", ["questions", "d", "type"]),
        ({"questions": {"d": {"type": "maybe"}}}, "questions.d.type", ["questions", "d", "type"]),
        ({"questions": {"d": {"type": ["noul"]}}}, "questions.d.type", ["questions", "d", "type"]),
        ({"questions": {"d": {**NOUL, "instructions": 5}}}, "questions.d.instructions", None),
        ({"questions": {"d": {**NOUL, "criteria": ["x"]}}}, "questions.d.criteria", None),
        ({"questions": {"d": {**NOUL, "criteria": {"yes": "x"}}}}, "questions.d.criteria.yes", None),
        ({"questions": {"d": {**NOUL, "criteria": {"true": 1}}}}, "questions.d.criteria.true", None),
        ({"questions": {"d": {"type": "choice"}}}, "questions.d.criteria", ["questions", "d", "criteria"]),
        ({"questions": {"d": {"type": "choice", "criteria": ["a"]}}}, "questions.d.criteria", None),
        ({"questions": {"d": {"type": "choice", "criteria": {}}}}, "questions.d.criteria", None),
        ({"questions": {"d": {"type": "choice", "criteria": LABELS}}}, "questions.d.criteria", None),
        ({"questions": {"d": {"type": "choice", "criteria": {" ": None}}}}, "questions.d.criteria", None),
        ({"questions": {"d": {"type": "choice", "criteria": {"a": 5}}}}, "questions.d.criteria.a", None),
        ({"questions": {"d": {"type": "score"}}}, "questions.d.criteria", None),
        ({"questions": {"d": {"type": "score", "criteria": {}}}}, "questions.d.criteria", None),
        ({"questions": {"d": {"type": "score", "criteria": []}}}, "questions.d.criteria", None),
        ({"questions": {"d": {"type": "score", "criteria": ["x"] * 256}}}, "questions.d.criteria", None),
        (
            {"questions": {"d": {"type": "score", "criteria": ["x", 5]}}},
            "questions.d.criteria.1",
            ["questions", "d", "criteria", 1],
        ),
        ({"normalize": "max"}, "normalize", ["normalize"]),
        ({"prefix": 5}, "prefix", ["prefix"]),
        ({"model": 5}, "model", ["model"]),
        ({"pin_state": "yes"}, "pin_state", ["pin_state"]),
        ({"entropy": 1}, "entropy", ["entropy"]),
        ({"cache_slot": -1}, "cache_slot", ["cache_slot"]),
        ({"cache_slot": True}, "cache_slot", ["cache_slot"]),
        ({"cache_slot": 1}, "cache_slot", ["cache_slot"]),
    ],
)
def test_the_422_matrix(serve, fields, param, loc):
    server = serve()
    body = {"state": "s", "questions": {"q": NOUL}, **fields}
    reply = server.post("/v1/systemone", {name: value for name, value in body.items() if value != "absent"})
    assert reply.status == 422, reply.body
    assert reply.error["param"] == param and reply.error["code"] is None
    assert reply.error["type"] == "invalid_request_error"
    first = reply.json["detail"][0]
    assert first["type"] == "value_error" and first["msg"]
    assert first["loc"][0] == "body" and ".".join(map(str, first["loc"][1:])) == param
    assert loc is None or first["loc"][1:] == loc
    assert not server.engine.submitted


def test_every_fault_is_told_and_bounded(serve):
    reply = decide(serve(), {f"q{i}": {"type": "x" * 2000} for i in range(64)}, state=5, normalize=3)
    assert reply.status == 422 and len(reply.json["detail"]) == 64 and len(reply.body) < 20_000


@pytest.mark.parametrize("state", ["", {}, [], "text", {"a": 1}, ["x"]])
def test_right_states(serve, state):
    assert decide(serve(), state=state).status == 200


@pytest.mark.parametrize("instructions", [None, "", "  ", {}, [], {"a": "b"}, ["x"], "text"])
def test_right_instructions(serve, instructions):
    assert (
        decide(
            serve(), {"q": {**NOUL, "instructions": instructions}, "c": {**CHOICE, "instructions": instructions}}
        ).status
        == 200
    )


def test_errors_of_other_kinds_keep_their_own_status(serve):
    assert serve().post("/v1/systemone", b"{nonsense").error["code"] == "invalid_json"
    assert decide(serve(api_keys=("k",))).status == 401
    reply = decide(serve(model=with_slots(1, n_ctx=60)))
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded" and reply.error["n_ctx"] == 60
    assert decide(serve(strict_model=True), model="another").status == 200
    assert decide(serve(strict_fields=True), colour="red").error["code"] == "unknown_parameter"
    assert decide(serve(), colour="red").headers["x-phobos-ignored-fields"] == "colour"
    server = serve(endless(), max_queue=0)
    with server.connect() as running:
        running.send(
            encode("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True})
        )
        eventually(lambda: server.engine.running)
        assert decide(server).status == 429


def test_a_failure_is_masked_and_the_slot_is_free_again(serve):
    server = serve()

    def fail(request, tokens, choice):
        yield Failed(PhobosError("secret"))

    good, server.engine.score_script = server.engine.score_script, fail
    reply = decide(server, {"a": CHOICE, "b": CHOICE})
    assert reply.status == 500 and reply.error["code"] == "engine_error" and b"secret" not in reply.body
    server.engine.score_script = good
    assert decide(server).status == 200


def test_a_model_without_probabilities_is_an_error(serve):
    server = serve()

    def broken(request, tokens, choice):
        yield Scores(tuple(tuple(math.nan for _ in wanted) for _, wanted in request.targets))
        yield finished(tokens, 0)

    server.engine.score_script = broken
    assert decide(server).status == 503


def test_a_client_that_leaves_is_noticed_between_batches(serve):
    server = serve()

    def slow(request, tokens, choice):
        yield 0.05
        yield Scores(tuple(tuple(-1.0 for _ in wanted) for _, wanted in request.targets))
        yield finished(tokens, 0)

    server.engine.score_script = slow
    with server.connect() as client:
        client.send(encode("POST", "/v1/systemone", {"state": "s", "questions": {f"q{i}": CHOICE for i in range(60)}}))
        eventually(lambda: server.engine.finished >= 2)
    eventually(lambda: not server.engine.running and server.engine.cancelled >= 1)
    assert server.engine.finished < 30
    assert server.get("/health").json["scheduler"]["cancelled"] == 1


def test_several_slots_give_what_one_gives(serve):
    questions = {f"q{i}": {**CHOICE, "instructions": f"number {i}"} for i in range(20)}
    one, many = decide(serve(), questions).json, decide(serve(model=with_slots(4)), questions).json
    assert one["answers"] == many["answers"]


@pytest.mark.parametrize("shares", [(1.0,), (1 / 3,) * 3, (0.9999999, 1e-7), (1 / 255,) * 255, (0.5, 0.5)])
def test_rounded_shares_add_up(shares):
    rounded = round_shares(shares)
    assert round(sum(rounded) * 1e6) == 1_000_000
    assert all(abs(a - b) <= 1e-6 for a, b in zip(rounded, shares, strict=True))
