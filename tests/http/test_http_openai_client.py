"""The real `openai` client against the scripted engine."""

from __future__ import annotations

import asyncio

import openai
import pytest

from doubles.scripted_engine import chat, encode, endless, eventually, parrot, say, with_slots
from phobos.chat.events import Failed, TextDelta, ToolCallDelta, ToolCallStart
from phobos.errors import PhobosError

HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture
def client_of():
    clients = []

    def make(server, **options):
        options = {"api_key": "local", "max_retries": 0, **options}
        clients.append(openai.OpenAI(base_url=server.url + "/v1", **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_chat(serve, client_of):
    reply = client_of(serve()).chat.completions.create(model="m", messages=HELLO, temperature=0, max_tokens=5)
    assert reply.choices[0].message.content == "hello there" and reply.model == "m"
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_stream(serve, client_of):
    stream = client_of(serve()).chat.completions.create(
        model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello there"
    assert chunks[-1].usage.completion_tokens == 2 and chunks[-2].choices[0].finish_reason == "stop"


def test_the_stream_helper(serve, client_of):
    with client_of(serve()).chat.completions.stream(model="m", messages=HELLO) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "hello there"


def test_async(serve):
    server = serve(model=with_slots(2))

    async def ask():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="local") as client:

            async def stream(text):
                chunks = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": text}], stream=True
                )
                return "".join([c.choices[0].delta.content or "" async for c in chunks])

            texts = await asyncio.gather(*(stream(f"number {i} of many") for i in range(6)))
            whole = await client.chat.completions.create(model="m", messages=HELLO)
            return texts, whole.choices[0].message.content

    assert asyncio.run(ask()) == ([f"number {i} of many" for i in range(6)], "hello there")


def test_completions(serve, client_of):
    client = client_of(serve())
    assert client.completions.create(model="m", prompt="a b c").choices[0].text == "a b c"
    chunks = client.completions.create(model="m", prompt="a b c", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "a b c"


def test_models(serve, client_of):
    client = client_of(serve())
    (model,) = client.models.list()
    assert model.id == "GGUF, scripted" and client.models.retrieve(model.id).id == model.id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_tools(serve, client_of):
    def script(request, tokens, choice):
        yield ToolCallStart(0, "call_1", request.tools[0].name)
        yield ToolCallDelta(0, '{"city": "Paris"}')
        from doubles.scripted_engine import finished

        yield finished(tokens, 4, "tool_calls")

    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    reply = client_of(serve(script)).chat.completions.create(model="m", messages=HELLO, tools=tools)
    call = reply.choices[0].message.tool_calls[0]
    assert (call.id, call.function.name, call.function.arguments) == ("call_1", "weather", '{"city": "Paris"}')


def test_errors_are_mapped(serve, client_of):
    server = serve(model=with_slots(1, n_ctx=100), api_keys=("right",))
    with pytest.raises(openai.AuthenticationError):
        client_of(server, api_key="wrong").models.list()
    client = client_of(server, api_key="right")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=HELLO, temperature=9)
    assert caught.value.param == "temperature" and caught.value.code == "invalid_value"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 200}], stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="m", input="x")
    assert caught.value.code == "unsupported_endpoint"


def test_server_errors_are_mapped(serve, client_of):
    def script(request, tokens, choice):
        yield TextDelta("begun")
        yield 0.02
        yield Failed(PhobosError("broken"))

    client = client_of(serve(script))
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=HELLO)
    with pytest.raises(openai.APIError, match="engine failed"):
        list(client.chat.completions.create(model="m", messages=HELLO, stream=True))


def test_a_full_queue_is_a_rate_limit_and_retries_get_through(serve, client_of):
    server = serve(endless(), max_queue=0)
    with server.connect() as running:
        running.send(encode("POST", "/v1/chat/completions", chat(stream=True)))
        eventually(lambda: server.engine.running)
        with pytest.raises(openai.RateLimitError) as caught:
            client_of(server).chat.completions.create(model="m", messages=HELLO)
        assert caught.value.code == "queue_full"
        server.engine.script = parrot
    reply = client_of(server, max_retries=5).chat.completions.create(model="m", messages=HELLO)
    assert reply.choices[0].message.content == "hello there"


def test_a_timeout_frees_the_slot(serve, client_of):
    server = serve(say("late", pause_s=30))
    with pytest.raises(openai.APITimeoutError):
        client_of(server, timeout=0.3).chat.completions.create(model="m", messages=HELLO)
    eventually(lambda: not server.engine.running and server.engine.cancelled == 1)


def test_closing_a_stream_frees_the_slot(serve, client_of):
    server = serve(endless())
    stream = client_of(server).chat.completions.create(model="m", messages=HELLO, stream=True)
    for _, chunk in zip(range(5), stream, strict=False):
        assert chunk.choices
    stream.close()
    eventually(lambda: server.engine.cancelled == 1)
