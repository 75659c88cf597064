"""The published description and the server agree: schemathesis asks whatever the description allows, and what not."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from doubles.scripted_engine import with_slots
from phobos.http.protocols.embeddings import EmbeddingFields, LlamaEmbeddingFields
from phobos.http.protocols.openai import ChatFields, CompletionFields
from phobos.http.protocols.sampling import SAMPLING
from phobos.http.routes import _TABLE

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is in the dev extra")
yaml = pytest.importorskip("yaml", reason="schemathesis brings PyYAML")

DESCRIPTION = Path(__file__).parents[2] / "docs" / "openapi.yaml"


@pytest.fixture(scope="module")
def description():
    return yaml.safe_load(DESCRIPTION.read_text())


def properties_of(description, name):
    schema = description["components"]["schemas"][name]
    found = set()
    for part in schema.get("allOf", [schema]):
        if "$ref" in part:
            found |= properties_of(description, part["$ref"].rsplit("/", 1)[1])
        found |= set(part.get("properties", ()))
    return found


def test_every_route_is_described(description):
    described = {path for path in description["paths"] if not path.endswith("/{id}")}
    assert described == set(_TABLE)
    for path, (_, methods) in _TABLE.items():
        assert {method.lower() for method in methods if method != "HEAD"} == set(description["paths"][path])


def test_every_described_field_is_read(description):
    assert properties_of(description, "ChatRequest") <= set(ChatFields.__struct_fields__) | SAMPLING.names
    assert properties_of(description, "CompletionRequest") <= set(CompletionFields.__struct_fields__) | SAMPLING.names
    assert properties_of(description, "EmbeddingRequest") == set(EmbeddingFields.__struct_fields__)
    assert properties_of(description, "LlamaEmbeddingRequest") <= set(LlamaEmbeddingFields.__struct_fields__)


def for_scripted_model(description):
    """The description with the bounds of the model that answers here: one slot, 258 tokens."""
    fitted = copy.deepcopy(description)
    schemas = fitted["components"]["schemas"]
    shared = schemas["SharedRequest"]["properties"]
    shared["n"]["maximum"] = 1
    shared["cache_slot"]["maximum"] = 0
    biases = shared["logit_bias"]["patternProperties"]
    shared["logit_bias"]["patternProperties"] = {"^[0-9]{1,2}$": next(iter(biases.values()))}
    prompt = schemas["CompletionRequest"]["allOf"][1]["properties"]["prompt"]
    prompt["anyOf"][2]["items"]["maximum"] = 255
    schemas["TokenId"]["maximum"] = 257
    schemas["EmbeddingRequest"]["properties"]["dimensions"]["maximum"] = 4
    body = fitted["paths"]["/detokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body["properties"]["tokens"]["items"]["maximum"] = 257
    return fitted


OPERATIONS = [
    (path, method) for path, item in yaml.safe_load(DESCRIPTION.read_text())["paths"].items() for method in item
]
EMBEDDING = ("/v1/embeddings", "/embedding")


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_the_server_keeps_to_the_description(serve, description, path, method):
    server = serve(model=with_slots(1, embeds=path in EMBEDDING))
    operation = schemathesis.openapi.from_dict(for_scripted_model(description))[path][method.upper()]

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy())
    def ask(case):
        response = case.call(base_url=server.url)
        assert response.status_code < 500, response.text
        case.validate_response(response)

    ask()
