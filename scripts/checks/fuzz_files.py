"""Hostile model files by the thousand: every one is refused in a sentence or runs.

    python scripts/checks/fuzz_files.py [--headers N] [--loads N] [--seed S] [--backend cpu|reference] [--http BYTES]

`--headers` files are opened, inspected and built to programs; `--loads` files are loaded and run, a prompt and a few
tokens. Work is done in child processes, so that one that dies is told apart from one that refuses; the first finding
ends the run with the seed that makes it again. Needs the repository (`tests/hostile_files.py`).
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

BATCH = {"headers": 2000, "loads": 1000, "http": 200_000}


def main() -> int:
    """Run batches in child processes, or one batch as a child."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("headers", "loads", "http"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--child", action="store_true")
    asked = parser.parse_args()
    kinds = [kind for kind in BATCH if getattr(asked, kind)]
    if asked.child:
        faulthandler.enable()
        for kind in kinds:
            print(dict(RUNS[kind](asked.seed, getattr(asked, kind), asked.backend)))
        return 0
    for kind in kinds:
        n, done, told, seed = getattr(asked, kind), 0, Counter[str](), asked.seed
        began_s = time.monotonic()
        while done < n:
            step = min(BATCH[kind], n - done)
            command = [sys.executable, __file__, "--child", f"--{kind}", str(step), "--seed", str(seed)]
            child = subprocess.run(
                [*command, "--backend", asked.backend], capture_output=True, text=True, timeout=1800, check=False
            )
            if child.returncode:
                print(f"seed {seed} ends with {child.returncode}:\n{child.stdout[-2000:]}{child.stderr[-4000:]}")
                return 1
            told.update(eval(child.stdout.strip().splitlines()[-1]))
            done, seed = done + step, seed + 1
        print(f"{kind}: {n} from seed {asked.seed} in {time.monotonic() - began_s:.0f} s: {dict(told)}", flush=True)
    return 0


def run_headers(seed: int, n: int, backend: str) -> Counter[str]:
    """Open, inspect, build and read the vocabulary of `n` changed files, whose tensors are holes."""
    from hostile_files import NAMES, mutate, sound, write
    from phobos.errors import PhobosError
    from phobos.gguf.reader import open_gguf
    from phobos.gguf.vocabulary import read_vocabulary
    from phobos.inspection import report_on

    draw, told = random.Random(seed), Counter[str]()
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "m.gguf"
        for i in range(n):
            case = mutate(draw, sound(draw.choice(NAMES)))
            try:
                with open_gguf(write(case, path, with_data=False)) as gguf:
                    problem = report_on(gguf).problem
                    read_vocabulary(gguf.metadata)
                told["refused" if problem else "taken"] += 1
            except PhobosError as error:
                _check_sentence(str(error))
                told["refused"] += 1
            except BaseException:
                print(f"file {i} of seed {seed}: {case.family}: {case.what[:500]}")
                raise
    return told


def run_loads(seed: int, n: int, backend: str) -> Counter[str]:
    """Load `n` changed files and run what loads: a prompt, and tokens one by one."""
    import numpy as np

    from hostile_files import NAMES, mutate, sound, spoil_blocks, write
    from models.tiny_models import make_tokens
    from one_op import make_batch
    from phobos.archs import build_program
    from phobos.errors import PhobosError
    from phobos.gguf.quants import GGMLType
    from phobos.gguf.reader import open_gguf
    from phobos.gguf.tokenizer import load_tokenizer
    from phobos.kernels.placing.opening import open_backend
    from phobos.settings import EngineSettings

    draw, told = random.Random(seed), Counter[str]()
    mixed = (GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.Q6_K, GGMLType.Q5_1, GGMLType.Q4_0, GGMLType.F16)
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "m.gguf"
        for i in range(n):
            case = sound(draw.choice(NAMES), draw.choice(((GGMLType.F32,), mixed)))
            case = spoil_blocks(draw, case) if draw.random() < 0.4 else mutate(draw, case)
            settings = EngineSettings(
                write(case, path), backend=backend, device="cpu", n_threads=1, n_ctx=64, n_slots=1
            )
            try:
                with open_gguf(path) as gguf:
                    load_tokenizer(gguf)
                    model, _ = open_backend(build_program(gguf), gguf, settings, lambda progress: None)
                try:
                    tokens = make_tokens(9) % model.limits.n_vocab
                    if model.limits.n_ctx >= 10:
                        model.run(make_batch(tokens[:6], 0, 0))
                        logits = model.run(make_batch(tokens[6:7], 6, 0))
                        told["ran" if np.isfinite(logits).all() else "ran, not all numbers"] += 1
                finally:
                    model.close()
            except PhobosError as error:
                _check_sentence(str(error))
                told["refused"] += 1
            except BaseException:
                print(f"file {i} of seed {seed}: {case.family}: {case.what[:500]}")
                raise
    return told


def run_http(seed: int, n: int, backend: str) -> Counter[str]:
    """At least `n` bytes, requests and what is made of them by chance, through the parser of a connection."""
    from phobos.http.transport.exchange import BodyEnd, BodyPiece, Exchange, Malformed, PeerClosed, State
    from phobos.http.transport.wire import RequestHead

    draw, told, n_bytes = random.Random(seed), Counter[str](), 0
    while n_bytes < n:
        data = _made_up_requests(draw)
        n_bytes += len(data)
        exchange, at = Exchange(), 0
        while at < len(data) and exchange.state is not State.DEAD:
            step = draw.choice((1, 2, 7, 64, 4096))
            exchange.receive(data[at : at + step])
            at += step
            while (event := exchange.next_event()) is not None:
                assert isinstance(event, RequestHead | BodyPiece | BodyEnd | Malformed | PeerClosed)
                told[type(event).__name__] += 1
                if isinstance(event, Malformed | PeerClosed):
                    break
                if isinstance(event, BodyEnd):
                    exchange.send_response(200, (), b"", close=False)
                    if not exchange.reusable:
                        break
                    exchange.next_cycle()
    told["bytes"] = n_bytes
    return told


_LINES = (
    b"GET / HTTP/1.1", b"POST /v1/chat/completions HTTP/1.1", b"host: x", b"content-length: 5", b"content-length: 05",
    b"transfer-encoding: chunked", b"transfer-encoding: identity", b"connection: close", b"expect: 100-continue",
    b"GET http://a@b:1/?x HTTP/1.0", b" folded", b"x:\x00", b"x: \xff", b"", b"hello", b"5", b"0", b"fffffffffffffffff",
)  # fmt: skip


def _made_up_requests(draw: random.Random) -> bytes:
    """One or a few requests with some of their bytes and lines changed."""
    end = draw.choice((b"\r\n", b"\r\n", b"\n"))
    parts = []
    for _ in range(draw.choice((1, 2, 3))):
        body = draw.randbytes(draw.choice((0, 5, 300)))
        lines = [draw.choice(_LINES[:2]), b"host: localhost", b"content-length: %d" % len(body)]
        if draw.random() < 0.3:
            lines[2] = b"transfer-encoding: chunked"
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        for _ in range(draw.choice((0, 0, 1, 3))):
            lines.insert(draw.randrange(len(lines) + 1), draw.choice(_LINES))
        parts += [end.join(lines), end, end, body]
    data = bytearray(b"".join(parts))
    for _ in range(draw.choice((0, 0, 1, 5))):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def _check_sentence(text: str) -> None:
    assert text and text.isprintable() and len(text) < 1000, text


RUNS = {"headers": run_headers, "loads": run_loads, "http": run_http}

if __name__ == "__main__":
    sys.exit(main())
