"""The conversation as data: turns, its file, what is exported, and every way a file can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phobos.chat.messages import Message, ToolCall
from phobos.errors import FileError, UsageError
from phobos.repl.knobs import KNOBS, sampling_params, set_knob, show_value
from phobos.repl.transcript import Transcript, code_blocks, from_json, to_json, to_markdown, write_file
from phobos.settings import SamplingDefaults

MESSAGES = (
    Message("system", "be kind"),
    Message("user", "what is\n2+2?"),
    Message("assistant", None, tool_calls=(ToolCall("c1", "add", '{"a": 2}'),)),
    Message("tool", "4", tool_call_id="c1", name="add"),
    Message("assistant", "It is *4*, 中.", reasoning="two and two"),
)


def test_a_file_brings_back_what_was_saved() -> None:
    text = to_json(MESSAGES)
    assert from_json(text, "f") == MESSAGES
    assert "中" in text
    assert from_json(json.dumps({"model": "x", "messages": json.loads(text)}), "f") == MESSAGES
    parts = '[{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]'
    assert from_json(parts, "f") == (Message("system", "ab"),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid JSON"),
        ("[" * 5000, "is not valid JSON"),
        ("3", "does not hold a list"),
        ("{}", "does not hold a list"),
        ("[3]", "message 1 is not an object"),
        ('[{"role": "user", "content": "a"}, {"role": "king", "content": "a"}]', "message 2 needs a role"),
        ('[{"role": ["user"], "content": "a"}]', "message 1 needs a role"),
        ('[{"role": "user"}]', "message 1 has no text"),
        ('[{"role": "user", "content": 3}]', "message 1 has no text"),
        ('[{"role": "user", "content": [{"type": "image_url"}]}]', "message 1 has no text"),
        ('[{"role": "assistant", "content": "a", "reasoning_content": 3}]', "instead of text"),
        ('[{"role": "assistant", "tool_calls": 3}]', "without id, name or arguments"),
        ('[{"role": "assistant", "tool_calls": [{"id": "a"}]}]', "without id, name or arguments"),
        (
            '[{"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "n", "arguments": "{}"}}]}]',
            "not text",
        ),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(FileError, match=sentence):
        from_json(text, "f.json")


def test_turns() -> None:
    talk = Transcript()
    assert talk.undo() is None and talk.last_answer is None and talk.messages == ()
    talk.replace(MESSAGES)
    assert talk.system == "be kind" and talk.messages == MESSAGES
    assert talk.last_answer == MESSAGES[-1]
    assert talk.undo() == MESSAGES[1]
    assert talk.messages == MESSAGES[:1]


def test_markdown_for_people() -> None:
    text = to_markdown(MESSAGES, "smol")
    assert text.startswith("# Conversation with smol\n\n## System\n\nbe kind\n\n## You\n\nwhat is\n2+2?\n\n## smol\n")
    assert "> two and two\n\nIt is *4*, 中.\n" in text
    assert 'add({"a": 2})' in text


def test_code_blocks() -> None:
    text = "a\n```py\nx = 1\n\ny\n```\nb\n~~~\n```\n~~~\n````md\n```\ninner\n```\n````\n```\ncut off"
    assert code_blocks(text) == ["x = 1\n\ny", "```", "```\ninner\n```", "cut off"]
    assert code_blocks("none") == []


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    write_file(path, "new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileError, match="cannot write"):
        write_file(tmp_path / "no/such/f", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="cannot write"):
        write_file(tmp_path / "folder", "x")
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]


def test_knobs_cover_what_a_request_carries() -> None:
    sampling = SamplingDefaults()
    for name, knob in KNOBS.items():
        sampling = set_knob(sampling, name, "1")
        assert show_value(sampling, name) == "1"
        assert getattr(sampling, knob.name) == 1
    params = sampling_params(sampling)
    assert (params.temperature, params.top_k, params.seed) == (1.0, 1, 1)
    assert sampling.max_tokens == 1
    for name in KNOBS:
        sampling = set_knob(sampling, name.replace("-", "_").upper(), "default")
    assert sampling == SamplingDefaults()
    assert set_knob(SamplingDefaults(max_tokens=3), "n-predict", "-1").max_tokens is None


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("tmp", "1", "did you mean temp"),
        ("zzz", "1", "available are temp"),
        ("temp", "hot", "must be a number"),
        ("temp", "3", "must be from 0 to 2"),
        ("temp", "nan", "must be from 0 to 2"),
        ("seed", "1.5", "must be a whole number"),
        ("top-k", "-2", "must be from -1"),
    ],
)
def test_wrong_settings(name: str, value: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        set_knob(SamplingDefaults(), name, value)
