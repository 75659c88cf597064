"""The words users of other programs type, misspelt commands, and the servers of this machine: `ps`, `stop`, `log`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import CommandLine
from models.tiny_models import RECIPES, write_tiny_model
from phobos.commands.parsing import verbs
from phobos.errors import UsageError
from phobos.host import servers

Call = Callable[..., "subprocess.CompletedProcess[str]"]
SCRIPTED = [sys.executable, str(Path(__file__).with_name("serve_scripted.py"))]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "phobos"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "tiny.gguf"
    path.parent.mkdir(exist_ok=True)
    return write_tiny_model(RECIPES["llama"], path)


@pytest.fixture
def server(run_cli: CommandLine, tiny: Path) -> Iterator[subprocess.Popen[str]]:
    """A server with a scripted engine, once it is listed."""
    command = [*SCRIPTED, "--gguf", str(tiny), "--listen", "127.0.0.1:0", "--no-tui"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=run_cli.environment(), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            wait_until(lambda: bool(servers.list_servers()))
            yield process
        finally:
            process.kill()
            process.communicate()


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["list", "--json"], ["models", "--json"]),
        (["ls"], ["models"]),
        (["show", "smollm2"], ["inspect", "smollm2"]),
        (["rm", "smollm2", "--yes"], ["models", "--remove", "smollm2", "--yes"]),
        (["help"], ["--help"]),
        (["help", "pull"], ["pull", "--help"]),
        (["help", "list"], ["models", "--help"]),
        (["version"], ["--version"]),
        (["serve"], ["--serve"]),
        (["serve", "smollm2", "-c", "99"], ["--serve", "--gguf", "smollm2", "-c", "99"]),
        (["serve", "--listen", ":1"], ["--serve", "--listen", ":1"]),
        (["Tell", "me"], ["Tell", "me"]),
        ([], []),
    ],
)
def test_verbs_of_other_programs(typed: list[str], meant: list[str]) -> None:
    assert verbs.translate(typed) == meant


@pytest.mark.parametrize(
    ("words", "meant"),
    [("chatt", "chat"), ("modles", "models"), ("install smollm2", "pull"), ("status", "ps"), ("DOCTR", "doctor")],
)
def test_a_word_that_is_nearly_a_command_is_no_prompt(call: Call, words: str, meant: str) -> None:
    done = call(*words.split())
    assert done.returncode == 2 and done.stdout == ""
    assert f"did you mean {meant}? (`phobos-cli -- {words}` sends it as a prompt)" in done.stderr


@pytest.mark.parametrize("words", [["hello"], ["chatt with me"], ["delete", "all", "vowels"], ["Why?"]])
def test_prompts_stay_prompts(words: list[str]) -> None:
    verbs.refuse_misspelt(words, ["chat", "models"])


def test_two_dashes_send_any_word(call: Call) -> None:
    done = call("--gguf", "/no/such.gguf", "--", "chatt")
    assert "did you mean" not in done.stderr and "/no/such.gguf" in done.stderr


def test_run_talks_or_asks(call: Call, run_cli: CommandLine, tiny: Path) -> None:
    done = run_cli("run", str(tiny), "--temp", "0", "-n", "3", "Hello")
    assert done.returncode == 0 and done.stdout
    piped = run_cli("run", str(tiny), "--temp", "0", "-n", "3", stdin="Hello")
    assert piped.stdout == done.stdout


def test_serve_and_a_prompt_contradict(call: Call, tiny: Path) -> None:
    done = call("serve", str(tiny), "a prompt")
    assert done.returncode == 2 and "give one of them" in done.stderr


# The servers of this machine


def test_a_server_is_listed_with_its_state_and_stopped(call: Call, server: subprocess.Popen[str], tiny: Path) -> None:
    (found,) = json.loads(call("ps", "--json").stdout)["servers"]
    assert (found["pid"], found["model"]) == (server.pid, str(tiny))
    assert found["state"] in ("ok", "loading")
    assert re.search(rf"(?m)^ *{server.pid} +http://127.0.0.1:\d+ +tiny +\d+ s +\w", call("ps").stdout)
    done = call("stop", "tiny")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"process {server.pid}" in done.stderr
    assert server.wait(10) == 0
    assert "no server is running" in call("ps").stdout


def test_a_server_that_was_killed_is_forgotten(server: subprocess.Popen[str], state: Path) -> None:
    server.kill()
    server.wait()
    assert list((state / "servers").iterdir())
    assert servers.list_servers() == []
    assert not list((state / "servers").iterdir())


def test_another_process_with_the_same_id_is_no_server(state: Path) -> None:
    folder = state / "servers"
    folder.mkdir(parents=True)
    other = servers.Server(os.getpid(), "http://127.0.0.1:1", "m.gguf", 0.0, "another mark")
    (folder / "1.json").write_text(json.dumps(vars(other)))
    (folder / "2.json").write_text("{")
    assert servers.list_servers() == []


def test_stop_says_which_servers_there_are(call: Call, state: Path) -> None:
    assert "no server is running" in call("stop").stderr
    with servers.registered("http://127.0.0.1:1", Path("a.gguf")):
        mine = servers.list_servers()[0]
        (state / "servers" / "other.json").write_text(json.dumps({**vars(mine), "address": "http://127.0.0.1:2"}))
        with pytest.raises(UsageError, match=r"several servers are running: name one of \d+ \(http://127.0.0.1:"):
            servers.find_server(None)
        with pytest.raises(UsageError, match="no server is called x"):
            servers.find_server("x")
        assert servers.find_server("2").address == "http://127.0.0.1:2"


def test_a_server_in_the_background(run_cli: CommandLine, tiny: Path) -> None:
    started = run_cli("serve", str(tiny), "--listen", "127.0.0.1:0", "--detach", "--backend", "reference")
    assert started.returncode == 0, started.stderr
    (found,) = servers.list_servers()
    try:
        assert found.address in started.stdout and str(found.pid) in started.stdout
        wait_until(lambda: "ready" in servers.log_path(found.pid).read_text())
        assert "listening on" in run_cli("log").stdout
    finally:
        done = run_cli("stop", str(found.pid))
    assert done.returncode == 0, done.stderr
    assert servers.list_servers() == []


def test_a_background_server_that_cannot_start_says_why(run_cli: CommandLine, tmp_path: Path) -> None:
    done = run_cli("serve", str(tmp_path / "none.gguf"), "--detach")
    assert done.returncode == 1
    assert done.stderr.startswith("phobos-cli: the server did not start:") and "none.gguf" in done.stderr


def test_what_no_encoding_holds_ends_no_answer(run_cli: CommandLine) -> None:
    """`--help` has characters that ASCII lacks: they are replaced."""
    program = "import sys; from phobos import cli; cli._take_any_character(); print('a–b'); print('é', file=sys.stderr)"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a?b\n", "\\xe9\n")
