"""Run coding agents against Phobos, each installed as a user would, in an empty repository of its own.

    python scripts/checks/check_agents.py MODEL.gguf [--real] [--folder DIR] [--only NAME ...] [--ctx-size N]

Each is told, without anybody to ask, to write one file. Behind the server stands a model that does just that
(`tests/doubles/task_model.py`) on the tokenizer, template and grammars of MODEL, a file of the Hermes dialect; so the
server is what is checked. With `--real` MODEL itself answers, and its wits count too.

Prints a line an agent: passed, with its versions and the number of requests; failed, with each refusal; or not
installable. It has passed where the file was written, no request was refused or sent twice and no stream broke. With
`--folder` what was installed is kept and used again, and what was said is written there. Exits with 1 where an agent
failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template

from agents import AGENTS, Agent
from installing import Installed, NotInstallableError, install
from local_server import serve
from recording import Exchange, record

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = ROOT / "tests" / "doubles" / "task_model.py"
TASK = "Write a file hello.txt that contains the single word hello. Then stop."
RUN_S = 120
SHOWN_REFUSALS = 12


@dataclass(frozen=True)
class Outcome:
    """What came of a run; `code` is None where time ran out."""

    exchanges: tuple[Exchange, ...]
    code: int | None
    written: str | None
    took_s: float
    output: str

    @property
    def faults(self) -> list[str]:
        """What was wrong, a line each."""
        refusals = Counter(e.describe_refusal() for e in self.exchanges if e.is_refused)
        faults = [f"refused {count} times: {said}" for said, count in refusals.most_common(SHOWN_REFUSALS)]
        asked = Counter((e.path, e.asked) for e in self.exchanges if e.method == "POST")
        retried = sum(count - 1 for count in asked.values())
        if retried:
            faults.append(f"retried: {retried} requests were sent again as they were")
        broken = sum(e.is_broken for e in self.exchanges)
        if broken:
            faults.append(f"broken: {broken} streams ended with an error")
        if self.written is None:
            faults.append("hello.txt was not written")
        elif self.written.strip() != "hello":
            faults.append(f"hello.txt holds {self.written[:80]!r}")
        if self.code != 0:
            faults.append(f"nothing after {RUN_S} s" if self.code is None else f"it ended with {self.code}")
        return faults


def fill(text: str, places: dict[str, str]) -> str:
    """The text with its `$names` replaced."""
    return Template(text).safe_substitute(places)


def run(agent: Agent, installed: Installed, address: str, home: Path, repository: Path) -> tuple[int | None, str]:
    """Its exit code and all it printed."""
    places = {"address": address, "task": TASK, "home": str(home), "programs": str(Path(__file__).with_name("clients"))}
    for name, text in agent.files.items():
        path = (repository if name.startswith("./") else home) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text, places))
    dead = "http://127.0.0.1:9"  # nobody answers: nothing leaves this machine
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "ANTHROPIC_", "PYTHON", "PHOBOS_"))
    }
    environment |= {
        "HOME": str(home),
        "PWD": str(repository),
        "PATH": f"{installed.programs}{os.pathsep}{os.environ['PATH']}",
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy") if agent.takes_proxy else (), dead),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
        "DO_NOT_TRACK": "1",
        **{name: fill(value, places) for name, value in agent.environment.items()},
    }
    output, deadline_s = "", time.monotonic() + RUN_S
    for command in filter(None, (agent.setup, agent.command)):
        left_s = max(1.0, deadline_s - time.monotonic())
        code, said = call([fill(word, places) for word in command], repository, environment, left_s)
        output += said
        if code != 0:
            return code, output
    return 0, output


def call(command: list[str], folder: Path, environment: dict[str, str], timeout_s: float) -> tuple[int | None, str]:
    """Run a command with all its children in a session of its own; the children end with it."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, process_group=0
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return code, said.read()


def check(agent: Agent, installed: Installed, options: argparse.Namespace) -> Outcome:
    """Run the agent against a server of its own."""
    with tempfile.TemporaryDirectory(prefix="agent-") as scratch:
        home, repository = Path(scratch) / "home", Path(scratch) / "repository"
        home.mkdir()
        repository.mkdir()
        subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
        flags = ["--ctx-size", str(options.ctx_size)] if options.ctx_size is not None else []
        double = [sys.executable, str(DOUBLE)]
        with (
            serve(
                str(options.model.resolve()),
                *flags,
                program=() if options.real else double,
                environment={"TASK_FOLDER": str(repository)},
            ) as server,
            record(server) as (address, exchanges),
        ):
            wait_until_ready(server)
            began_s = time.monotonic()
            code, output = run(agent, installed, address, home, repository)
            took_s = time.monotonic() - began_s
        path = repository / "hello.txt"
        written = path.read_text(errors="replace") if path.is_file() else None
        return Outcome(tuple(exchanges), code, written, took_s, output)


def wait_until_ready(address: str) -> None:
    """Until the model is loaded, so that no agent waits for it."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=10):
                return
        except OSError:
            time.sleep(0.2)


def keep(folder: Path, agent: Agent, outcome: Outcome) -> None:
    """Write down what was said."""
    place = folder / "runs" / agent.name.replace(" ", "-").replace(",", "")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "output.txt").write_text(outcome.output)
    for index, exchange in enumerate(outcome.exchanges):
        name = f"{index:03}-{exchange.status}-{exchange.path.partition('?')[0].strip('/').replace('/', '_')}"
        (place / f"{name}.request.json").write_bytes(exchange.asked)
        (place / f"{name}.reply.txt").write_bytes(exchange.answered)


def main() -> int:
    """Check the agents that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--real", action="store_true", help="let the model itself answer")
    parser.add_argument("--folder", type=Path, help="keep what is installed and said here")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="agents by a part of their name")
    parser.add_argument("--ctx-size", type=int, metavar="N", help="the server's flag; else its default")
    options = parser.parse_args()
    chosen = [a for a in AGENTS if not options.only or any(part in a.name for part in options.only)]
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for agent in chosen:
            place = (options.folder or Path(scratch)).resolve() / agent.packages[0].strip("@").replace("/", "-")
            try:
                installed = install(agent.packages, place, is_node=agent.is_node)
            except NotInstallableError as error:
                print(f"{agent.name}: not installable: {error}", flush=True)
                continue
            outcome = check(agent, installed, options)
            if options.folder is not None:
                keep(options.folder, agent, outcome)
            faults = outcome.faults
            failed = failed or bool(faults)
            said = f"{len(outcome.exchanges)} requests, {outcome.took_s:.0f} s, {installed.describe_versions()}"
            print(f"{agent.name}: {'failed' if faults else 'passed'} ({said})", *faults, sep="\n    ", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
