"""Every sampling field, from the one table, on every protocol, the command line, `/set`, `/props` and in the docs."""

from __future__ import annotations

import math
from pathlib import Path

import click
import pytest

from doubles.scripted_engine import with_slots
from phobos.commands.parsing.flags import Flag, SamplingValue
from phobos.commands.parsing.options import SAMPLING_FLAGS, read_sampling
from phobos.engine.model import read_sampling as read_file
from phobos.engine.sampler import resolve_sampling
from phobos.errors import RequestError, UsageError
from phobos.http.protocols.anthropic import parse_message_job
from phobos.http.protocols.llama_completion import parse_llama_completion
from phobos.http.protocols.openai import parse_chat, parse_completion
from phobos.http.protocols.responses import parse_response_job
from phobos.repl.knobs import sampling_params, set_knob
from phobos.sampling_fields import FIELDS, LENGTH, SamplingField, SamplingValues
from phobos.settings import EngineSettings, SamplingDefaults, ServeSettings

DOCS = Path(__file__).parents[2] / "docs"
SAID = [{"role": "user", "content": "hi"}]
PROTOCOLS = {
    "chat": (parse_chat, {"messages": SAID}, "ChatRequest"),
    "completions": (parse_completion, {"prompt": "hi"}, "CompletionRequest"),
    "responses": (parse_response_job, {"input": "hi"}, "ResponsesRequest"),
    "messages": (parse_message_job, {"messages": SAID, "max_tokens": 5}, "MessagesRequest"),
    "llama": (parse_llama_completion, {"prompt": "hi"}, "LlamaRequest"),
}


def name_on(protocol: str, field: SamplingField) -> str:
    return field.llama_name if protocol == "llama" else field.name


def step(field: SamplingField) -> float:
    return 1 if field.whole else 0.001


def held(field: SamplingField) -> list[float]:
    """The lowest value, one inside and the highest."""
    low = step(field) if field.excludes_low else field.low
    return [low, 1, field.high]


def beyond(field: SamplingField) -> list[float]:
    return [field.low if field.excludes_low else field.low - step(field), field.high + step(field)]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_field_over_http(protocol: str, field: SamplingField) -> None:
    parse, body, _ = PROTOCOLS[protocol]
    name = name_on(protocol, field)

    def read(value: object) -> object:
        job = parse(body | {name: value}, "r", ServeSettings())
        assert not job.ignored
        return getattr(job.requests[0].sampling, field.name)

    for value in held(field):
        assert read(value) == value
    assert read(None) is None
    for value in [*beyond(field), True, "1", [1]]:
        with pytest.raises(RequestError, match=name) as caught:
            read(value)
        assert (caught.value.param, caught.value.status) == (name, 400)


@click.command()
@click.pass_context
def command(ctx: click.Context, **values: object) -> object:
    return read_sampling(values)


for decorate in SAMPLING_FLAGS:
    command = decorate(command)


@pytest.mark.parametrize("field", [*FIELDS, LENGTH], ids=lambda field: field.name)
def test_a_flag(field: SamplingField) -> None:
    def read(*arguments: str) -> object:
        sampling = command.main(list(arguments), standalone_mode=False)
        return getattr(sampling, field.name)

    assert read() is None
    for name in field.flags:
        for value in held(field):
            assert read(name, str(value)) == (None if field is LENGTH and value == -1 else value)
        for value in [*map(str, beyond(field)), "nan", "x", ""]:
            with pytest.raises(click.BadParameter, match="must be") as caught:
                read(name, value)
            assert field.flags[0] in caught.value.format_message()


@pytest.mark.parametrize("field", [*FIELDS, LENGTH], ids=lambda field: field.name)
def test_a_knob(field: SamplingField) -> None:
    def read(text: str) -> object:
        sampling = set_knob(SamplingDefaults(), field.flag_name, text)
        if field is not LENGTH:
            assert getattr(sampling_params(sampling), field.name) == getattr(sampling, field.name)
        return getattr(sampling, field.name)

    assert read("default") is None
    for value in held(field):
        assert read(str(value)) == (None if field is LENGTH and value == -1 else value)
    for value in [*map(str, beyond(field)), "nan", "x"]:
        with pytest.raises(UsageError, match=f"{field.flag_name} must be"):
            read(value)


def test_props_tells_what_a_request_that_says_nothing_gets(serve):
    given, file = SamplingDefaults(top_k=7, typical_p=0.5, max_tokens=9), SamplingDefaults(top_k=9, temperature=0.3)
    settings = EngineSettings(Path("model.gguf"), sampling=given)
    server = serve(model=with_slots(1, settings=settings, sampling=file))
    told = server.get("/props").json["default_generation_settings"]["params"]
    chain = resolve_sampling(read_sampling_of(PROTOCOLS["chat"]), given, file).chain
    for field in FIELDS:
        if field.name != "seed":
            assert told.pop(field.llama_name) == getattr(chain, field.name)
    assert told == {"seed": -1, "max_tokens": 9}
    assert (chain.top_k, chain.temperature, chain.repetition_penalty) == (7, 0.3, 1.0)


def read_sampling_of(protocol):
    parse, body, _ = protocol
    return parse(body, "r", ServeSettings()).requests[0].sampling


def test_a_model_file_s_values_that_are_out_of_range_are_left_out() -> None:
    keys = {f"general.sampling.{field.file_key}": field for field in FIELDS if field.file_key is not None}
    assert len(keys) == 5
    for key, field in keys.items():
        for value in held(field):
            assert read_file({key: value}) == SamplingDefaults(**{field.name: value})
        for value in [*beyond(field), math.nan, "1", True]:
            assert read_file({key: value}) == SamplingDefaults()


def test_the_defaults_are_in_range() -> None:
    assert [field.name for field in FIELDS if not field.holds(field.default)] == []
    assert SamplingValues() == SamplingValues(**{field.name: None for field in FIELDS})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_description_gives_the_same_ranges(protocol: str) -> None:
    yaml = pytest.importorskip("yaml", reason="schemathesis brings PyYAML")
    schemas = yaml.safe_load((DOCS / "openapi.yaml").read_text())["components"]["schemas"]
    described = {}
    for part in schemas[PROTOCOLS[protocol][2]].get("allOf", [schemas[PROTOCOLS[protocol][2]]]):
        schema = schemas[part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
        described |= schema["properties"]
    for field in FIELDS:
        found = described[name_on(protocol, field)]
        assert found["type"] == ["integer" if field.whole else "number", "null"]
        assert found["exclusiveMinimum" if field.excludes_low else "minimum"] == field.low
        assert found["maximum"] == min(field.high, (1 << 53) - 1)  # what JSON numbers hold exactly


def test_the_docs_name_every_field() -> None:
    contract = (DOCS / "http.md").read_text()
    assert [field.name for field in FIELDS if f"| `{field.name}` |" not in contract] == []
    flags = [decorate(lambda: None).__click_params__[0] for decorate in SAMPLING_FLAGS]
    assert all(isinstance(flag, Flag) and isinstance(flag.type, SamplingValue) for flag in flags)
