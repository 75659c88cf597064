"""`/completion` in llama-server's shape, and its names for metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from doubles.scripted_engine import finished, parrot, say, with_slots
from phobos.chat.events import Failed, TextDelta, TokenLogprob
from phobos.errors import PhobosError
from phobos.http.protocols.llama_completion import MAX_PREDICT


def ask(server, prompt="a b c", **fields):
    return server.post("/completion", {"prompt": prompt, **fields})


def test_a_completion(serve):
    body = ask(serve(), seed=7).json
    assert (body["content"], body["stop"], body["stop_type"], body["stopping_word"]) == ("a b c", True, "eos", "")
    assert (body["index"], body["id_slot"], body["prompt"], body["tokens"]) == (0, 0, "a b c", [])
    assert (body["tokens_predicted"], body["tokens_evaluated"], body["truncated"]) == (3, 5, False)
    assert body["timings"]["predicted_n"] == 3 and body["generation_settings"]["seed"] == 7


def test_a_stream_adds_up_to_the_whole(serve):
    server = serve()
    *parts, last = ask(server, stream=True).events
    assert "".join(part["content"] for part in parts) == "a b c" and not any(part["stop"] for part in parts)
    whole = ask(server).json
    assert last["stop"] and last["content"] == ""
    for name in ("stop_type", "tokens_predicted", "tokens_evaluated", "model", "generation_settings"):
        assert last[name] == whole[name]


def test_how_it_stopped(serve):
    def script(request, tokens, choice):
        yield TextDelta("x")
        yield replace(finished(tokens, 1), stop_text=request.stop[0])

    body = ask(serve(script), stop=["END"]).json
    assert (body["stop_type"], body["stopping_word"]) == ("word", "END")
    assert ask(serve(say("x", reason="length"))).json["stop_type"] == "limit"


@pytest.mark.parametrize(
    ("n_predict", "limit"), [(None, None), (-1, MAX_PREDICT), (0, 0), (5, 5), (100_000_000, 100_000_000)]
)
def test_n_predict(serve, n_predict, limit):
    server = serve()
    assert ask(server, n_predict=n_predict).status == 200
    assert server.engine.submitted[0].max_tokens == limit


@pytest.mark.parametrize("n_predict", [-2, -5, 1.5, "10", True])
def test_wrong_n_predict(serve, n_predict):
    reply = ask(serve(), n_predict=n_predict)
    assert reply.status == 400 and reply.error["param"] == "n_predict"


def test_several_prompts_are_a_list(serve):
    server = serve(model=with_slots(2))
    bodies = ask(server, ["one", "two", [104, 105]]).json
    assert [(body["index"], body["content"]) for body in bodies] == [(0, "one"), (1, "two"), (2, "hi")]


def test_probabilities_and_tokens(serve):
    def script(request, tokens, choice):
        top = TokenLogprob(104, "h", b"h", -0.25)
        yield TextDelta("h", (replace(top, top=(top,)),) if request.top_logprobs is not None else ())
        yield finished(tokens, 1)

    server = serve(script)
    body = ask(server, n_probs=1, return_tokens=True).json
    assert body["tokens"] == [104]
    (entry,) = body["completion_probabilities"]
    assert entry["id"] == 104 and entry["logprob"] == -0.25 and entry["top_logprobs"][0]["bytes"] == [104]
    body = ask(server, return_tokens=True).json
    assert body["tokens"] == [104] and "completion_probabilities" not in body
    assert ask(server, n_probs=1, stream=True).events[0]["completion_probabilities"] == [entry]


def test_what_the_engine_is_asked(serve):
    server = serve(model=with_slots(2))
    fields = {
        "temperature": 0.5,
        "repeat_penalty": 1.1,
        "top_k": -1,
        "logit_bias": [[65, 2.5], [66, False]],
        "json_schema": {"type": "object"},
        "id_slot": 1,
        "cache_prompt": False,
        "mirostat": 0,
        "dry_multiplier": 0.0,
        "ignore_eos": False,
    }
    assert ask(server, **fields).status == 200
    (request,) = server.engine.submitted
    assert request.sampling.logit_bias == {65: 2.5, 66: -100.0} and request.sampling.top_k == -1
    assert request.sampling.repetition_penalty == 1.1 and request.output.schema == {"type": "object"}
    assert request.cache_slot == 1 and not request.cache_prompt
    assert ask(server, logit_bias={"65": 1}, grammar='root ::= "a"', id_slot=-1).status == 200
    assert server.engine.submitted[1].output.kind == "grammar" and server.engine.submitted[1].cache_slot is None


@pytest.mark.parametrize(
    ("sent", "prompts"),
    [
        ([1, 2, "text", 3], [(1, 2, "text", 3)]),
        ({"prompt_string": "text"}, ["text"]),
        ([[5, 6], {"prompt_string": "text"}, "more"], [(5, 6), "text", "more"]),
    ],
)
def test_prompts_of_ids_texts_and_objects(serve, sent, prompts):
    server = serve(model=with_slots(3))
    assert ask(server, sent).status == 200
    assert [request.prompt for request in server.engine.submitted] == prompts


def test_chosen_fields_and_biases(serve):
    server = serve()
    fields = ["content", "generation_settings/n_predict", "timings/predicted_n", "nothing"]
    assert ask(server, n_predict=9, response_fields=fields).json == {
        "content": "a b c",
        "generation_settings/n_predict": 9,
        "timings/predicted_n": 3,
    }
    assert "model" in ask(server, response_fields=[]).json
    body = ask(server, ignore_eos=True, logit_bias=[[" hot", -3], [65, 2]]).json
    assert body["generation_settings"]["logit_bias"] == [{"token": 65, "bias": 2.0}, {"token": 257, "bias": None}]
    asked = server.engine.submitted[-1].sampling
    assert asked.ignore_eos and asked.text_bias == {" hot": -3.0} and asked.logit_bias == {65: 2.0}


def test_a_stream_has_a_part_for_each_token(serve):
    def script(request, tokens, choice):
        assert request.top_logprobs == 0
        yield TextDelta("hi", tuple(TokenLogprob(ord(c), c, c.encode(), -0.5) for c in "hi"))
        yield finished(tokens, 2)

    *parts, last = ask(serve(script), stream=True).events
    assert [(part["content"], part["tokens"]) for part in parts] == [("h", [104]), ("i", [105])]
    assert last["stop"] and last["tokens"] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"mirostat": 2}, "mirostat"),
        ({"prompt": [["x", -1]]}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["y"]}}, "prompt"),
        ({"logit_bias": [["x", 101]]}, "logit_bias"),
        ({"image_data": [{}]}, "image_data"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"logit_bias": "x"}, "logit_bias"),
        ({"logit_bias": [[True, 1]]}, "logit_bias"),
        ({"json_schema": 5}, "json_schema"),
        ({"json_schema": {}, "grammar": "root ::= x"}, "grammar"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"id_slot": -2}, "id_slot"),
        ({"n_probs": 99}, "n_probs"),
    ],
)
def test_wrong_input(serve, fields, param):
    reply = serve().post("/completion", {"prompt": "x", **fields})
    assert reply.status == 400 and reply.error["param"] == param, reply.body


def test_a_late_failure_is_one_event(serve):
    def script(request, tokens, choice):
        yield TextDelta("x")
        yield 0.02
        yield Failed(PhobosError("secret"))

    events = ask(serve(script), stream=True).events
    assert events[-1] == "[DONE]" and events[-2]["error"]["code"] == "engine_error" and len(events) == 3


def families(server):
    return {family.name: family for family in text_string_to_metric_families(server.get("/metrics").body.decode())}


def test_metrics_under_llama_servers_names(serve):
    assert not any(name.startswith("llamacpp:") for name in families(serve(parrot)))
    server = serve(parrot, metrics_llamacpp=True)
    server.counters.prompt_tokens_computed, server.counters.prompt_s = 30, 2.0
    server.counters.generated_tokens = 53
    server.counters.decode_tokens, server.counters.decode_s = 50, 5.0
    found = families(server)
    values = {name: family.samples[0].value for name, family in found.items() if name.startswith("llamacpp:")}
    assert values["llamacpp:prompt_tokens"] == 30 and values["llamacpp:prompt_tokens_seconds"] == 15
    assert values["llamacpp:tokens_predicted"] == 53 and values["llamacpp:predicted_tokens_seconds"] == 10
    assert values["llamacpp:requests_processing"] == values["llamacpp:requests_deferred"] == 0
    assert found["llamacpp:prompt_tokens"].samples[0].name == "llamacpp:prompt_tokens_total"
