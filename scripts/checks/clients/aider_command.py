"""The `aider` command: a question about a file, answered and written to its history."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

Path("greet.py").write_text('print("hello")\n')
environment = os.environ | {"OPENAI_API_BASE": f"{sys.argv[1]}/v1", "OPENAI_API_KEY": "local"}
quiet = ["--yes-always", "--no-git", "--no-check-update", "--analytics-disable", "--no-pretty"]
quiet += ["--no-show-model-warnings"]
aider = str(Path(sys.executable).with_name("aider"))
command = [aider, "--model", "openai/local", *quiet, "--map-tokens", "0", "--chat-mode", "ask"]
ran = subprocess.run(
    [*command, "--message", "What does greet.py print? Answer in one word.", "greet.py"],
    env=environment,
    capture_output=True,
    text=True,
    stdin=subprocess.DEVNULL,
    check=False,
)
assert ran.returncode == 0, ran.stderr
assert "Tokens:" in ran.stdout and "received" in ran.stdout, ran.stdout
print(next(line for line in ran.stdout.splitlines() if line.startswith("Tokens:")))
