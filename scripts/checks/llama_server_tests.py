"""Run llama.cpp's own server tests against Phobos with a model of this machine.

    python scripts/checks/llama_server_tests.py TESTS MODEL.gguf [--python PYTHON] [PYTEST ARGUMENTS]

TESTS is the folder `tools/server/tests` of llama.cpp, which also travels in the source package of llama-cpp-python
(`vendor/llama.cpp/tools/server/tests`); PYTHON has what its `requirements.txt` lists. The tests start the program that
`LLAMA_SERVER_BIN_PATH` names: a launcher made here, which says llama-server's flags in Phobos' words and gives it
MODEL, whichever model was asked for. Cases that need what Phobos does not have, or the answers of one particular
model, are left out (`llama_server_cases.py` says why); the last lines count the rest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from llama_server_cases import find_reason

MODEL = "PHOBOS_SERVER_TESTS_MODEL"
# llama-server's flags that have no meaning here: those with a value, and those without.
WITH_VALUE = {
    "--hf-repo",
    "--hf-file",
    "--model",
    "--model-url",
    "--tags",
    "-fa",
    "--reasoning-format",
    "--reasoning",
    "--pooling",
}
WITHOUT = {"--offline", "--slots", "--no-slots", "--jinja", "--no-jinja", "--cont-batching", "--no-ui", "--verbose"}
WITHOUT |= {"--embedding", "--reranking", "--kv-unified", "--swa-full", "--no-mmproj", "--no-models-autoload"}


def translate(words: list[str], model: str) -> list[str]:
    """Phobos' flags for llama-server's. Its context is that of all slots together."""
    flags, slots, context = ["-m", model, "--no-tui"], 1, None
    rest = iter(words)
    for word in rest:
        if word in WITHOUT:
            continue
        if word in WITH_VALUE:
            next(rest)
        elif word == "--parallel":
            slots = int(next(rest))
        elif word == "--ctx-size":
            context = int(next(rest))
        elif word == "--chat-template-file":
            flags += ["--chat-template", next(rest)]
        elif word == "--cors-origins":
            flags += [] if (origins := next(rest)) == "localhost" else ["--cors-origin", origins]
        elif word == "--metrics":
            flags.append("--metrics-llamacpp")
        else:
            flags.append(word)
    if context is not None:
        flags += ["--ctx-size", str(context if "--kv-unified" in words else max(context // slots, 8))]
    return [*flags, "--parallel", str(slots)]


def answer_health(port: int) -> None:
    """Be well, and nothing else: the tests begin with a start of every model they know, so that it is fetched."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


def launch(words: list[str]) -> None:
    """Become the server."""
    if "--offline" not in words:
        answer_health(int(words[words.index("--port") + 1]))
    program = Path(sys.executable).with_name("phobos-cli")
    os.execv(program, [str(program), *translate(words, os.environ[MODEL])])


def run_tests(tests: Path, model: Path, python: str, arguments: list[str]) -> int:
    """Run pytest on what is not left out, and count."""
    with tempfile.TemporaryDirectory() as scratch:
        launcher = Path(scratch) / "llama-server"
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" --launch "$@"\n')
        launcher.chmod(0o755)
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", "--no-header"]
        listed = subprocess.run(
            [*command, "--collect-only", "-q", *arguments], cwd=tests, capture_output=True, text=True, check=False
        )
        cases = re.findall(r"^unit/\S.*::.*$", listed.stdout, re.MULTILINE)
        if not cases:
            raise SystemExit(listed.stdout + listed.stderr)
        reasons = {case: find_reason(case) for case in cases}
        wanted = [case for case, reason in reasons.items() if reason is None]
        chosen = Path(scratch) / "cases"
        chosen.write_text("\n".join(wanted))
        environment = os.environ | {"LLAMA_SERVER_BIN_PATH": str(launcher), MODEL: str(model.resolve())}
        code = 0
        if wanted:
            code = subprocess.run(
                [*command, "-q", "-rfE", "--tb=short", "--show-capture=no", f"@{chosen}"],
                cwd=tests,
                env=environment,
                check=False,
            ).returncode
    print(f"{len(cases)} cases, {len(wanted)} applicable; left out:")
    for reason, number in Counter(reason for reason in reasons.values() if reason is not None).most_common():
        print(f"{number:5d} {reason}")
    return code


def main() -> int:
    """Launch as a server, or run the tests."""
    if sys.argv[1:2] == ["--launch"]:
        launch(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--python", default=sys.executable, help="a Python that has the tests' requirements")
    options, arguments = parser.parse_known_args()
    return run_tests(options.tests, options.model, options.python, arguments or ["unit"])


if __name__ == "__main__":
    sys.exit(main())
