"""A server of a model for the scripts here: started on a port of its own, ended with the script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def serve(model: str, *flags: str, program: Sequence[str] = (), environment: Mapping[str, str] = {}) -> Iterator[str]:
    """The address, such as `http://127.0.0.1:40123`, of a server of the model with these flags; of `program` in place
    of `phobos-cli`."""
    started = program or [str(Path(sys.executable).with_name("phobos-cli"))]
    command = [*started, "-m", model, "--listen", "127.0.0.1:0", "--no-tui", *flags]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        try:
            yield f"http://{_find_address(server, log)}"
        finally:
            server.terminate()
            server.wait(30)


def _find_address(server: subprocess.Popen[bytes], log: Any) -> str:
    """The address that the server tells in its log."""
    for _ in range(600):
        log.seek(0)
        found = re.search(r"listening on (?:http://)?(\S+)", log.read())
        if found:
            return found.group(1).rstrip("/")
        if server.poll() is not None:
            break
        time.sleep(0.1)
    log.seek(0)
    raise SystemExit(f"the server did not start:\n{log.read()}")
