"""`/v1/embeddings` and `/embedding` on real sockets, and what an embedding model refuses."""

from __future__ import annotations

import base64
import struct

import numpy as np
import openai
import pytest

from doubles.scripted_engine import embed_bytes, finished, with_slots
from phobos.chat.events import Embedded
from phobos.http.protocols.vectors import normalize

MODEL = with_slots(2, embeds=True, template=None, supports_tools=False)


def unit(tokens, n=4):
    vector = np.array(embed_bytes(tuple(tokens))[:n])
    return pytest.approx((vector / np.linalg.norm(vector)).tolist(), rel=1e-6)


def tokens_of(text):
    return [256, *text.encode()]


def test_one_text(serve):
    server = serve(model=MODEL)
    reply = server.post("/v1/embeddings", {"model": "any", "input": "héllo"})
    assert reply.status == 200
    assert reply.json == {
        "object": "list",
        "model": "any",
        "data": [{"object": "embedding", "index": 0, "embedding": unit(tokens_of("héllo"))}],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert "x-phobos-queue-wait-ms" in reply.headers
    assert server.post("/embeddings", {"input": "héllo"}).json["model"] == "GGUF, scripted"


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (["a", "bc"], [tokens_of("a"), tokens_of("bc")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        (["a", [7]], [tokens_of("a"), [7]]),
        (["x"] * 150, [tokens_of("x")] * 150),
    ],
)
def test_several_texts_and_token_ids(serve, value, texts):
    reply = serve(model=MODEL).post("/v1/embeddings", {"input": value})
    assert [item["index"] for item in reply.json["data"]] == list(range(len(texts)))
    assert [item["embedding"] for item in reply.json["data"]] == [unit(tokens) for tokens in texts]
    assert reply.json["usage"]["prompt_tokens"] == sum(map(len, texts))


def test_base64_holds_the_same_float32(serve):
    server = serve(model=MODEL)
    plain = server.post("/v1/embeddings", {"input": "abc", "encoding_format": "float"}).json["data"][0]["embedding"]
    coded = server.post("/v1/embeddings", {"input": "abc", "encoding_format": "base64"}).json["data"][0]["embedding"]
    assert struct.unpack("<4f", base64.b64decode(coded)) == struct.unpack("<4f", struct.pack("<4f", *plain))


def test_dimensions_cut_and_keep_the_length_of_one(serve):
    server = serve(model=MODEL)
    cut = server.post("/v1/embeddings", {"input": "abc", "dimensions": 2}).json["data"][0]["embedding"]
    assert cut == unit(tokens_of("abc"), 2) and np.linalg.norm(cut) == pytest.approx(1)
    reply = server.post("/v1/embeddings", {"input": "abc", "dimensions": 5})
    assert (reply.status, reply.error["param"]) == (400, "dimensions") and "at most 4" in reply.error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": 5}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "2"}, "dimensions"),
        ({"input": "a", "model": 5}, "model"),
    ],
)
def test_wrong_input_names_its_field(serve, fields, param):
    reply = serve(model=MODEL).post("/v1/embeddings", fields)
    assert reply.status == 400 and reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] is not None and reply.error["param"].startswith(param)


def test_unknown_fields_and_other_models(serve):
    reply = serve(model=MODEL).post("/v1/embeddings", {"input": "a", "user": "me", "task": "query"})
    assert reply.headers["x-phobos-ignored-fields"] == "task"
    server = serve(model=MODEL, strict_fields=True, strict_model=True)
    assert server.post("/v1/embeddings", {"input": "a", "task": "query"}).error["code"] == "unknown_parameter"
    assert server.post("/v1/embeddings", {"input": "a", "model": "other"}).error["code"] == "model_not_found"


def test_llama_servers_shape(serve):
    server = serve(model=MODEL)
    reply = server.post("/embedding", {"content": ["a", "bc"]})
    assert reply.json == [
        {"index": 0, "embedding": [unit(tokens_of("a"))]},
        {"index": 1, "embedding": [unit(tokens_of("bc"))]},
    ]
    raw = server.post("/embedding", {"input": "a", "embd_normalize": -1}).json[0]["embedding"][0]
    assert raw == list(embed_bytes((256, 97)))
    assert server.post("/embedding", {}).error["param"] == "content"
    assert server.post("/embedding", {"content": "a", "embd_normalize": -2}).error["param"] == "embd_normalize"


def test_norms():
    vector = np.array([3.0, -4.0])
    assert normalize(vector, 2).tolist() == pytest.approx([0.6, -0.8])
    assert normalize(vector, 1).tolist() == pytest.approx([3 / 7, -4 / 7])
    assert normalize(vector, 0).tolist() == pytest.approx([24570, -32760])
    assert normalize(vector * 1e300, 64).tolist() == pytest.approx([0.75, -1])
    for power in (-1, 0, 1, 2, 64):
        assert normalize(np.zeros(2), power).tolist() == [0, 0]


def test_an_embedding_model_writes_nothing(serve):
    server = serve(model=MODEL)
    for path, body in [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/completion", {"prompt": "hi"}),
    ]:
        reply = server.post(path, body)
        assert (reply.status, reply.error["code"]) == (400, "unsupported_endpoint"), path
    reply = server.post("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]})
    assert reply.status == 400 and "embedding model" in reply.error["message"]
    assert server.get("/v1/models").json["data"][0]["capabilities"] == ["embedding"]


def test_a_model_that_writes_embeds_nothing(serve):
    for path, body in (("/v1/embeddings", {"input": "x"}), ("/embedding", {"content": "x"})):
        reply = serve().post(path, body)
        assert (reply.status, reply.error["code"]) == (400, "unsupported_endpoint")


def test_numbers_that_are_none_are_an_error(serve):
    def script(request, tokens, choice):
        yield Embedded((float("nan"), 1.0))
        yield finished(tokens, 0)

    server = serve(model=MODEL)
    server.engine.score_script = script
    assert server.post("/v1/embeddings", {"input": "a"}).status == 503


def test_the_openai_client(serve):
    server = serve(model=MODEL)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        made = client.embeddings.create(model="m", input=["one", "two"])
        assert [item.embedding for item in made.data] == [unit(tokens_of("one")), unit(tokens_of("two"))]
        assert made.usage.total_tokens == 8
        plain = client.embeddings.create(model="m", input=[1, 2, 3], encoding_format="float", dimensions=3)
        assert plain.data[0].embedding == unit([1, 2, 3], 3)
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="m", input="")
        assert caught.value.param == "input"
