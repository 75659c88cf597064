"""A stand-in for the Hugging Face hub on loopback: the two routes `pull` uses, and the faults a real one shows."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class StandInHub:
    """What the hub holds and how it misbehaves; `ranges` notes the Range header of every file request."""

    repo: str = "maker/tiny-GGUF"
    files: dict[str, bytes] = field(default_factory=dict)
    endpoint: str = ""
    cut_after: int | None = None  # send so many bytes of a file, then hang up
    fail_after_cut: bool = False  # and answer 500 from then on
    corrupt: bool = False  # flip a byte of what is sent
    ignore_range: bool = False
    refuse: tuple[int, str] | None = None  # status and X-Error-Code of every answer
    garbage: bool = False  # answer like some other web server
    ranges: list[str | None] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    was_cut: bool = False

    def describe(self) -> bytes:
        """The answer of `/api/models/OWNER/REPO`."""
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(data).hexdigest(),
                "lfs": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134},
            }
            for name, data in self.files.items()
        ]
        body = {
            "id": self.repo,
            "modelId": self.repo,
            "sha": COMMIT,
            "siblings": siblings,
            "tags": [],
            "private": False,
        }
        return json.dumps(body).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandInHub

    def log_message(self, *args: object) -> None:
        """Keep the test's output clean."""

    def do_GET(self) -> None:
        hub = self.hub
        hub.authorizations.append(self.headers.get("Authorization"))
        path = self.path.partition("?")[0]
        if hub.refuse is not None:
            self._answer(hub.refuse[0], b'{"error":"refused"}', {"X-Error-Code": hub.refuse[1]})
        elif hub.garbage:
            self._answer(200, b"<html>hello</html>", {"Content-Type": "text/html"})
        elif path == f"/api/models/{hub.repo}":
            self._answer(200, hub.describe(), {"Content-Type": "application/json"})
        elif path.startswith(f"/{hub.repo}/resolve/{COMMIT}/"):
            self._send_file(path.removeprefix(f"/{hub.repo}/resolve/{COMMIT}/"))
        else:
            self._answer(404, b'{"error":"not found"}', {"X-Error-Code": "RepoNotFound"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, name: str) -> None:
        hub, wanted = self.hub, self.headers.get("Range")
        hub.ranges.append(wanted)
        if hub.was_cut and hub.fail_after_cut:
            self._answer(500, b"{}", {})
            return
        data = hub.files[name]
        if hub.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not hub.ignore_range else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if hub.cut_after is not None and not hub.was_cut:
            hub.was_cut = True
            self.wfile.write(data[start : start + hub.cut_after])
            self.close_connection = True
        else:
            self.wfile.write(data[start:])


@contextmanager
def serve_hub(hub: StandInHub) -> Iterator[StandInHub]:
    """Run the stand-in for a while; its address is in `hub.endpoint`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
