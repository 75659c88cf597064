"""What a completion request may hold."""

from __future__ import annotations

import pytest

from phobos.errors import RequestError
from phobos.http.protocols.openai import parse_completion
from phobos.settings import ServeSettings


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "logprobs": 33}, "logprobs"),
        ({"prompt": "x", "echo": "yes"}, "echo"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": "x", "best_of": 0}, "best_of"),
        ({"prompt": "x", "suffix": 5}, "suffix"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
    ],
)
def test_wrong_completions(fields, param):
    with pytest.raises(RequestError) as caught:
        parse_completion(fields, "r", ServeSettings())
    error = caught.value
    assert error.status == 400 and error.param is not None and error.param.startswith(param)


def test_completion_prompts():
    def prompts(value):
        return [r.prompt for r in parse_completion({"prompt": value}, "r", ServeSettings()).requests]

    assert prompts("a") == ["a"]
    assert prompts([1, 2]) == [(1, 2)]
    assert prompts(["a", "b"]) == ["a", "b"]
    assert prompts([[1], [2, 3]]) == [(1,), (2, 3)]
    assert prompts(["a", [1]]) == ["a", (1,)]


def test_suffix_needs_infill_and_tokens_need_a_vocabulary(serve):
    server = serve()
    assert server.post("/v1/completions", {"prompt": "x", "suffix": "y"}).error["param"] == "suffix"
    assert server.post("/v1/completions", {"prompt": [100_000]}).error["param"] == "prompt"
