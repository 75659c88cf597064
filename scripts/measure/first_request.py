"""How long the first requests after a start wait for their tokens, against those of the tenth.

    python scripts/measure/first_request.py MODEL.gguf [--requests N] [--tokens N]

Starts a server, waits until it is ready, streams chat requests with prompts of the same length but different words, one
after the other, and prints for each the milliseconds to its first token and from the first to the second. Ends with 1
if the first request's are more than 1.3 times the tenth's.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checks"))
from local_server import serve

MOST = 1.3  # times the last request's
SLACK_MS = 3.0  # of a clock, a loop and a thread's turn


def wait_until_ready(address: str) -> None:
    """Return as soon as `/health` says that the model is loaded."""
    for _ in range(3000):
        connection = http.client.HTTPConnection(address, timeout=30)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        finally:
            connection.close()
        time.sleep(0.02)
    raise SystemExit("the model was not loaded within a minute")


def time_request(address: str, number: int, n_tokens: int) -> tuple[float, float]:
    """Milliseconds to the first text of a stream, and to the second from there."""
    body = {
        "messages": [{"role": "user", "content": f"{number} {number + 1} {number + 2}: count on, as far as you can."}],
        "stream": True,
        "max_tokens": n_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    connection = http.client.HTTPConnection(address, timeout=60)
    began_s, times_s = time.perf_counter(), []
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            times_s.append(time.perf_counter())
    connection.close()
    return 1e3 * (times_s[0] - began_s), 1e3 * (times_s[1] - times_s[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=8)
    given = parser.parse_args()
    with serve(given.model) as url:
        address = url.removeprefix("http://")
        wait_until_ready(address)
        measured = [time_request(address, 10 * i, given.tokens) for i in range(given.requests)]
    for i, (first_ms, second_ms) in enumerate(measured, 1):
        print(f"request {i:2}: first token after {first_ms:6.1f} ms, the second {second_ms:6.1f} ms later")
    worst = max(now / (last + SLACK_MS) for now, last in zip(measured[0], measured[-1], strict=True))
    print(f"the first request takes at most {worst:.2f} times what the last takes")
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
