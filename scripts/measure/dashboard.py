"""What the dashboard costs: decode and prompt speed of two servers of one model, one drawing it and one not, in turns.

    python scripts/measure/dashboard.py MODEL.gguf [--pairs N] [--tokens N] [--size COLUMNSxROWS]

The dashboard is drawn in a pseudo-terminal that this script reads and forgets. The server whose turn it is not is
stopped (SIGSTOP), so it takes nothing from the other; which goes first alternates. Nothing is guessed ahead and nothing
reused, so both run the same passes. Prints the medians of both, the median of the pairs' ratios with its interval of
95%, and what the dashboard took of a core while it was its turn. A few pairs tell little: machines are not that quiet.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median

from turns import bounds_of_median

START_S = 60.0
SETTLE_S = 0.3
STORY = "Write a very long story about the sea."


class Server:
    """A server of the model in a terminal of its own, stopped unless it is its turn."""

    def __init__(self, model: Path, size: tuple[int, int], *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        program = Path(sys.executable).with_name("phobos-cli")
        command = [str(program), "-m", str(model), "--listen", self.address, "--no-lookup", *flags]
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self._process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
        )
        os.close(inside)
        self.n_drawn = 0
        threading.Thread(target=self._read, daemon=True).start()
        self._wait()
        self.pause()

    def _read(self) -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(self._screen, 1 << 16):
                self.n_drawn += len(data)

    def _wait(self) -> None:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            with suppress(OSError), urllib.request.urlopen(f"http://{self.address}/health", timeout=5) as reply:
                if json.load(reply)["status"] == "ok":
                    return
            time.sleep(0.1)
        raise SystemExit("the server did not start in time: try phobos-cli with this model by hand")

    def ask(self, prompt: str, n_tokens: int) -> dict[str, float]:
        """The timings of an answer."""
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": n_tokens,
            "temperature": 0,
            "cache_prompt": False,
        }
        request = urllib.request.Request(
            f"http://{self.address}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            return dict(json.load(reply)["timings"])

    def measure(self, n_tokens: int) -> tuple[float, float, float]:
        """Tokens a second of an answer and of a prompt, and the share of a core that the main thread took meanwhile."""
        os.kill(self._process.pid, signal.SIGCONT)
        time.sleep(SETTLE_S)
        self.ask("Say hello.", 8)
        began_s, used_s = time.monotonic(), self._main_thread_s()
        decode = self.ask(STORY, n_tokens)["predicted_per_second"]
        prompt = self.ask(" ".join(f"word{i}" for i in range(300)), 1)["prompt_per_second"]
        share = (self._main_thread_s() - used_s) / (time.monotonic() - began_s)
        self.pause()
        return decode, prompt, share

    def _main_thread_s(self) -> float:
        """Processor seconds of the thread that draws; 0 where the system does not tell."""
        try:
            return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]) / 1e9
        except OSError:
            return 0.0

    def pause(self) -> None:
        """Let the other have the machine."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def close(self) -> None:
        """End it."""
        os.kill(self._process.pid, signal.SIGCONT)
        self._process.terminate()
        self._process.wait(30)


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=300, help="of each answer")
    parser.add_argument("--size", default="120x40", help="of the terminal")
    options = parser.parse_args()
    columns, rows = map(int, options.size.split("x"))
    drawn = Server(options.model, (columns, rows), "--tui", "--no-animation")
    plain = Server(options.model, (columns, rows), "--no-tui")
    pairs = []
    try:
        for server in (drawn, plain):
            server.measure(options.tokens)
        n_before = drawn.n_drawn
        for index in range(options.pairs):
            turns = (drawn, plain) if index % 2 else (plain, drawn)
            found = {server: server.measure(options.tokens) for server in turns}
            pairs.append((found[drawn], found[plain]))
    finally:
        drawn.close()
        plain.close()
    for kind, name in enumerate(("decode", "prompt")):
        ratio, low, high = (100 * x for x in bounds_of_median(a[kind] / b[kind] for a, b in pairs))
        ours, theirs = (median(pair[side][kind] for pair in pairs) for side in (0, 1))
        print(
            f"{name}: {ours:.1f} tokens/s with the dashboard, {theirs:.1f} without; {ratio:.1f}% "
            f"({low:.1f} to {high:.1f}%)"
        )
    shares = [100 * median(pair[side][2] for pair in pairs) for side in (0, 1)]
    print(f"the main thread took {shares[0]:.2f}% of a core, {shares[1]:.2f}% without the dashboard")
    print(f"{(drawn.n_drawn - n_before) / options.pairs / 1000:.1f} kB drawn a turn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
