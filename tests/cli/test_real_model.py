"""The default model through the command line: an answer, a server, and what a newcomer measures with a watch."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from command_line import CommandLine

pytestmark = pytest.mark.model


def test_one_answer(run_cli: CommandLine, smollm2: Path) -> None:
    ask = ("--gguf", str(smollm2), "--temp", "0", "-n", "24")
    done = run_cli(*ask, "What is the capital of France?")
    assert (done.returncode, done.stderr) == (0, "")
    again = run_cli(*ask, "--json", stdin="What is the capital of France?\n")
    reply = json.loads(again.stdout)
    assert reply["choices"][0]["message"]["content"] == done.stdout.removesuffix("\n")
    assert reply["usage"]["completion_tokens"] <= 24
    assert reply["model"] == "GGUF, llama"


def test_show_and_raw(run_cli: CommandLine, smollm2: Path) -> None:
    done = run_cli("--gguf", str(smollm2), "--temp", "0", "-n", "3", "--raw", "--show", "5", "The colour of the sky is")
    assert done.returncode == 0
    rows = re.findall(r"^([> ])\s+\d\s+([\d.]+)%\s+\d+ (.+)$", done.stderr, re.MULTILINE)
    assert len(rows) == 5
    shares = [float(share) for _, share, _ in rows]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 100.001
    assert rows[0][0] == ">"
    assert done.stdout.startswith(rows[0][2].strip("'\""))


def test_a_schema_binds(run_cli: CommandLine, smollm2: Path, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    done = run_cli("--gguf", str(smollm2), "--seed", "1", "-n", "100", "--schema", str(path), "Name a city.")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert set(answer) == {"city", "people"} and isinstance(answer["people"], int)


def test_serving_to_the_openai_client(run_cli: CommandLine, smollm2: Path) -> None:
    import openai

    process = run_cli.start("--gguf", str(smollm2), "--listen", "127.0.0.1:0")
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        address = line.rstrip().rpartition("listening on ")[2]
        with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="any",
                stream=True,
                temperature=0,
                max_tokens=12,
                messages=[{"role": "user", "content": "Say hello."}],
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert "hello" in text.lower() or len(text) > 5
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, "")
    finally:
        process.kill()
        process.communicate()


def test_the_default_model_needs_no_name(run_cli: CommandLine, smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / smollm2.name).symlink_to(smollm2)
    done = run_cli("--temp", "0", "-n", "2", "hi")
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = json.loads(run_cli("models", "--json").stdout)["models"]
    assert (row["name"], row["quantization"], row["n_ctx"]) == (smollm2.name, "Q4_1", 8192)
