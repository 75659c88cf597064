"""Serving as a process: the port first, requests through loading, log lines, failures, signals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import pytest

from command_line import CommandLine
from doubles.scripted_engine import RawClient, chat, eventually
from phobos import serving

PROGRAM = [sys.executable, str(Path(__file__).with_name("serve_scripted.py"))]


class Server:
    """A running server, its log read as it comes."""

    def __init__(self, process: subprocess.Popen[str], began_s: float) -> None:
        self.process = process
        self.began_s = began_s
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern: str, timeout_s: float = 20.0) -> str:
        """The first log line that fits."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if re.search(pattern, line):
                    return line
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.01)
        raise AssertionError(f"no line fits {pattern!r}: {self.lines}")

    def client(self) -> RawClient:
        line = self.wait_for("listening on http://")
        host, port = line.rpartition("http://")[2].split(":")
        return RawClient((host, int(port)))

    def end(self, timeout_s: float = 20.0) -> tuple[int, str]:
        """Exit code and standard output."""
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        assert self.process.stdout is not None
        return code, self.process.stdout.read()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    return path


@contextmanager
def serve(tmp_path: Path, *args: str, **env: str) -> Iterator[Server]:
    environment = CommandLine(tmp_path).environment(env)
    pipe = subprocess.PIPE
    began_s = time.monotonic()
    command = [*PROGRAM, "--gguf", str(tmp_path / "m.gguf"), *args]
    process = subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )  # fmt: skip
    try:
        yield Server(process, began_s)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


LISTEN = ("--listen", "127.0.0.1:0")


def test_requests_sent_while_loading_are_answered_after_it(tmp_path: Path, model: Path) -> None:
    with serve(tmp_path, *LISTEN, SCRIPTED_LOAD_S="1.5") as server, server.client() as client:
        assert client.ask("GET", "/health").status in (200, 503)
        reply = client.ask("POST", "/v1/chat/completions", chat("hello there"))
        assert reply.json["choices"][0]["message"]["content"] == "hello there"
        assert time.monotonic() - server.began_s > 1.5
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == (0, "")
    assert "stopping: running requests have 5 s" in "\n".join(server.lines)


def test_the_log_is_for_grep(tmp_path: Path, model: Path) -> None:
    with serve(tmp_path, *LISTEN, "--no-tui") as server:
        server.wait_for("ready in")
        server.process.send_signal(signal.SIGINT)
        assert server.end() == (130, "")
    text = "\n".join(server.lines)
    assert re.search(r"^\S+ info serve: the dashboard is off: --no-tui was given$", text, re.MULTILINE)
    assert re.search(r"^\S+ info load: packing weights 50%: blk\.0$", text, re.MULTILINE)
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+ (info|warning) \w+: ", line) for line in server.lines), text
    assert "\x1b" not in text


def test_log_off_writes_nothing(tmp_path: Path, model: Path) -> None:
    with serve(tmp_path, *LISTEN, PHOBOS_LOG="off") as server:
        time.sleep(1.0)
        server.process.send_signal(signal.SIGTERM)
        server.end()
    assert server.lines == []


@pytest.mark.parametrize(
    ("how", "status_text", "sentence"),
    [
        ("fails", "damaged", "phobos-cli: the file is damaged: pull it again"),
        ("defect", "could not be loaded", "phobos-cli: this should not have happened (ZeroDivisionError: secret)"),
    ],
)
def test_a_failed_load_answers_the_waiting_and_ends(
    tmp_path: Path, model: Path, how: str, status_text: str, sentence: str
) -> None:
    with serve(tmp_path, *LISTEN, SCRIPTED_LOAD_S="1", SCRIPTED_END=how) as server, server.client() as client:
        reply = client.ask("POST", "/v1/chat/completions", chat("hello"))
        assert reply.status == 503
        assert status_text in reply.error["message"] and "secret" not in reply.error["message"]
        code, out = server.end()
    assert (code, out) == (1, "")
    assert server.lines[-1].startswith(sentence)
    assert "Traceback" not in "\n".join(server.lines)


def test_an_engine_that_dies_ends_the_program_with_its_reason(tmp_path: Path, model: Path) -> None:
    with serve(tmp_path, *LISTEN, SCRIPTED_END="dies") as server:
        assert server.end()[0] == 1
    assert server.lines[-1] == "phobos-cli: the engine ran out of luck: start again"


def test_a_running_stream_is_drained(tmp_path: Path, model: Path) -> None:
    with serve(tmp_path, *LISTEN, "--drain", "1", SCRIPTED_END="endless") as server, server.client() as client:
        server.wait_for("ready in")
        client.send(encode_chat())
        client.read_until(b"tick")
        asked_s = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        code, _ = server.end()
        assert code == 0 and 0.9 < time.monotonic() - asked_s < 6
        rest = client.buffer
        while not client.at_end():
            rest, client.buffer = rest + client.buffer, b""
    assert b"[DONE]" in rest


def test_a_second_signal_ends_at_once(tmp_path: Path, model: Path) -> None:
    with serve(tmp_path, *LISTEN, "--drain", "60", SCRIPTED_END="endless") as server, server.client() as client:
        server.wait_for("ready in")
        client.send(encode_chat())
        client.read_until(b"tick")
        server.process.send_signal(signal.SIGINT)
        server.wait_for("stopping")
        asked_s = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert server.end()[0] == 130
        assert time.monotonic() - asked_s < 2


def encode_chat() -> bytes:
    from doubles.scripted_engine import encode

    return encode("POST", "/v1/chat/completions", chat("go", stream=True))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_loading_ends_soon(tmp_path: Path, model: Path, number: signal.Signals) -> None:
    with serve(tmp_path, *LISTEN, SCRIPTED_LOAD_S="60") as server:
        server.wait_for("packing weights")
        server.process.send_signal(number)
        assert server.end(10)[0] == 0


def test_a_busy_port_ends_before_the_load(tmp_path: Path, model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serve(tmp_path, "--listen", f"127.0.0.1:{port}", SCRIPTED_LOAD_S="60") as server:
            assert server.end()[0] == 1
    (line,) = server.lines
    assert line.startswith("phobos-cli: ") and str(port) in line


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "nonsense", "127.0.0.1:99999"])
def test_addresses_that_are_refused(tmp_path: Path, model: Path, listen: str) -> None:
    with serve(tmp_path, "--listen", listen) as server:
        assert server.end()[0] == 2
    (line,) = server.lines
    assert line.startswith("phobos-cli: ")


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to tell a process's time")
def test_the_port_answers_before_anything_heavy_is_imported(tmp_path: Path, model: Path) -> None:
    best = 9.0
    for _ in range(3):
        with serve(tmp_path, *LISTEN, SCRIPTED_LOAD_S="5") as server, server.client() as client:
            assert client.ask("GET", "/").status == 200
            best = min(best, processor_seconds(server.process.pid))
    assert best < 0.8  # 0.4 s on a quiet machine with what the loader has begun; the rest is room for a slower one


def test_serving_imports_no_engine() -> None:
    heavy = "numpy", "numba", "llvmlite", "tokenizers", "textual", "jinja2"
    code = f"import sys, phobos.serving; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_stop_keeps_the_first_code() -> None:
    stop = serving.Stop()
    with stop.signals():
        assert not stop.wait(0.01)
        stop.ask(0)
        stop.ask(1)
        assert stop.wait(5) and stop.exit_code == 0
    stop.ask(1)  # a loader may still fail then


def wait_and_be_struck(at: int) -> tuple[bool, float]:
    """Wait for a second for a signal that comes at so many instructions; whether it came in the wait, and what the wait
    took."""
    stop, n_instructions = serving.Stop(), 0

    def strike(frame: FrameType, event: str, argument: object) -> object:
        nonlocal n_instructions
        if frame.f_code is not serving.Stop.wait.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            n_instructions += 1
            if n_instructions == at:
                stop.on_signal(signal.SIGTERM, frame)
        return strike

    before, began_s = sys.gettrace(), time.monotonic()
    with stop.signals():
        sys.settrace(strike)  # type: ignore[arg-type]
        try:
            is_asked = stop.wait(1.0)
        finally:
            sys.settrace(before)
    return is_asked, time.monotonic() - began_s


def test_a_signal_may_come_anywhere_in_the_wait_for_one() -> None:
    """Handlers run between any two instructions of the thread that waits, and so must take no lock it may hold."""
    for at in range(1, 100):
        is_asked, took_s = wait_and_be_struck(at)
        if took_s >= 1.0:  # the wait is over: the strike came after it, or not at all
            assert at > 8
            return
        assert is_asked
    pytest.fail("the wait has too many instructions")


@pytest.mark.skipif(sys.platform != "linux", reason="makes the pipe small")
def test_a_standard_error_that_nobody_reads_stops_nothing(tmp_path: Path, model: Path) -> None:
    from fcntl import F_SETPIPE_SZ, fcntl

    command = [*PROGRAM, "--gguf", str(model), "--listen", f"unix:{tmp_path}/s"]
    environment = CommandLine(tmp_path).environment({"PHOBOS_LOG": "trace"})
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        fcntl(process.stderr, F_SETPIPE_SZ, 4096)
        try:
            eventually((tmp_path / "s").exists, 20.0)
            with RawClient(str(tmp_path / "s"), 20.0) as client:
                for _ in range(30):
                    assert client.ask("POST", "/v1/chat/completions", chat("x" * 1000)).status == 200
                assert client.ask("GET", "/health").status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="bounds the files of a child")
def test_a_process_that_may_open_few_files_serves_as_many_as_it_can(tmp_path: Path, model: Path) -> None:
    import resource

    with serve(tmp_path, *LISTEN) as server:
        server.wait_for("ready in")
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        with ExitStack() as clients:
            for _ in range(180):
                clients.enter_context(server.client())
            server.wait_for("more files to open", 10)
            time.sleep(2.5)
        with server.client() as client:
            assert client.ask("GET", "/").status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end()[0] == 0
    assert sum("more files to open" in line for line in server.lines) == 1
    assert len(server.lines) < 20 and "Traceback" not in "\n".join(server.lines)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="bounds the files of a child")
def test_connections_are_bounded_by_the_files_that_may_be_open(tmp_path: Path, model: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
        with serve(tmp_path, *LISTEN) as server:
            server.wait_for("ready in")
            limits = Path(f"/proc/{server.process.pid}/limits").read_text()
            assert not re.search(r"Max open files +100 ", limits), "raised where the system allows"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with serve(tmp_path, *LISTEN, SCRIPTED_FILES="100") as server, ExitStack() as clients:
        server.wait_for("only 100 files may be open: 32 connections at once instead of 512; raise it by ulimit -n")
        server.wait_for("ready in")
        for _ in range(180):
            clients.enter_context(server.client())
        time.sleep(1.5)
        server.process.send_signal(signal.SIGTERM)
        assert server.end()[0] == 0
    assert sum("connections were dropped" in line for line in server.lines) <= 1
    assert "Traceback" not in "\n".join(server.lines)
