"""The `llm` command: a prompt, a stream, a schema, and a conversation gone on with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

home = Path.cwd() / "llm"
home.mkdir()
(home / "extra-openai-models.yaml").write_text(
    f'- model_id: phobos\n  model_name: local\n  api_base: "{sys.argv[1]}/v1"\n  supports_schema: true\n'
    "  supports_tools: true\n"
)
environment = os.environ | {"LLM_USER_PATH": str(home)}
llm = str(Path(sys.executable).with_name("llm"))


def run(*words: str) -> str:
    """What the command says."""
    ran = subprocess.run([llm, *words], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


options = ("-m", "phobos", "-o", "temperature", "0", "-o", "max_tokens", "24")
streamed = run(*options, "Say hello.")
whole = run(*options, "--no-stream", "Say hello.")
assert streamed and streamed == whole, (streamed, whole)
assert run("-c", "Again.")
person = run("-m", "phobos", "-o", "max_tokens", "120", "--schema", '{"type": "object", "properties": '
             '{"name": {"type": "string", "maxLength": 20}}, "required": ["name"]}', "Ada is 36.")  # fmt: skip
assert "name" in json.loads(person)
print("prompt, stream, conversation, schema")
