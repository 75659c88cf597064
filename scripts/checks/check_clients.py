"""Run other programs' clients against Phobos: install each in an environment of its own, talk to a running server.

    python scripts/checks/check_clients.py MODEL.gguf [--folder DIR] [--only NAME ...]

Prints one line a client: passed with which versions, failed (with its last words), or not installable. What each says
is in `scripts/checks/clients/`. With `--folder` what was installed is kept and used again. Exits with 1 where a client
failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from installing import NotInstallableError, install
from local_server import serve

CLIENTS = Path(__file__).with_name("clients")
RUN_S = 150


@dataclass(frozen=True)
class Client:
    """A client: its packages, of PyPI or (`is_node`) of npm, and the file in `clients/` that uses it."""

    name: str
    packages: tuple[str, ...]
    program: str
    is_node: bool = False


TABLE = (
    Client("openai for Python", ("openai",), "openai_python.py"),
    Client("openai for Node", ("openai", "zod"), "openai_node.mjs", is_node=True),
    Client("anthropic for Python", ("anthropic",), "anthropic_python.py"),
    Client("anthropic for Node", ("@anthropic-ai/sdk",), "anthropic_node.mjs", is_node=True),
    Client("AI SDK for Node", ("ai", "@ai-sdk/openai-compatible"), "ai_sdk_node.mjs", is_node=True),
    Client("llm", ("llm",), "llm_command.py"),
    Client("litellm", ("litellm",), "litellm_python.py"),
    Client("langchain-openai", ("langchain-openai",), "langchain_python.py"),
    Client("aider", ("aider-chat",), "aider_command.py"),
)


def prepare(client: Client, folder: Path) -> tuple[list[str], str]:
    """The command that runs the client's program, its packages installed below `folder`, and their versions."""
    home = folder / client.name.replace(" ", "-")
    installed = install(client.packages, home, is_node=client.is_node)
    program = CLIENTS / client.program
    if client.is_node:
        shutil.copy(program, home)  # beside its modules
        return ["node", str(home / program.name)], installed.describe_versions()
    return [str(installed.programs / "python"), str(program)], installed.describe_versions()


def check(client: Client, folder: Path, address: str) -> str:
    """One client's outcome: "passed ...", "failed ..." or "not installable ..."."""
    try:
        command, versions = prepare(client, folder)
    except NotInstallableError as error:
        return f"not installable: {error}"
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "ANTHROPIC_", "PYTHON"))}
        environment |= {"HOME": scratch, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        try:
            ran = subprocess.run(
                [*command, address],
                cwd=scratch,
                env=environment,
                capture_output=True,
                text=True,
                timeout=RUN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"failed: nothing after {RUN_S} s"
    words = ran.stdout.strip().splitlines()
    if ran.returncode:
        return "failed: " + "\n    ".join([*words, *ran.stderr.strip().splitlines()][-12:])
    return f"passed in {time.monotonic() - began_s:.1f} s with {versions}: {words[-1]}"


def main() -> int:
    """Check the clients that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--folder", type=Path, help="keep what is installed here")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="clients by a part of their name")
    options = parser.parse_args()
    chosen = [c for c in TABLE if not options.only or any(part in c.name for part in options.only)]
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch, serve(str(options.model), "--parallel", "2") as address:
        for client in chosen:
            outcomes.append(check(client, options.folder or Path(scratch), address))
            print(f"{client.name}: {outcomes[-1]}", flush=True)
    return int(any(outcome.startswith("failed") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
