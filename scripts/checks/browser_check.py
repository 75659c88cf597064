"""What a page of another site gets from a server, by a real browser: fetch, form, image, WebSocket and preflight,
against a server without a key and one with.

    python scripts/checks/browser_check.py [BROWSER]

BROWSER is Chromium or Chrome, found on the path unless given; without one the check says so and passes.
"""

from __future__ import annotations

import http.server
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAGE = """<!doctype html><meta charset=utf-8><body><iframe name=sink></iframe><script>
const at = "%s", told = {};
const say = (name, value) => { told[name] = value; };
const body = JSON.stringify({messages: [{role: "user", content: "hi"}]});
const ask = async (name, path, options) => {
  try { const r = await fetch(at + path, options); say(name, r.type + " " + r.status); }
  catch (e) { say(name, "blocked"); }
};
(async () => {
  await ask("fetch json (preflight)", "/v1/chat/completions",
            {method: "POST", headers: {"content-type": "application/json"}, body});
  await ask("fetch text", "/v1/chat/completions", {method: "POST", body});
  await ask("fetch no-cors, no type", "/v1/chat/completions",
            {method: "POST", mode: "no-cors", body: new Blob([body])});
  await ask("erase a slot", "/slots/0?action=erase", {method: "POST", mode: "no-cors"});
  await ask("read models", "/v1/models", {});
  const form = document.createElement("form");
  Object.assign(form, {method: "POST", action: at + "/v1/completions", enctype: "text/plain", target: "sink"});
  form.innerHTML = `<input name='{"prompt":"hi","x":"' value='"}'>`;
  document.body.append(form); form.submit(); say("form", "sent");
  const image = new Image();
  await new Promise(done => { image.onload = () => { say("image", "shown"); done(); };
    image.onerror = () => { say("image", "not shown"); done(); }; image.src = at + "/slots/0?action=erase"; });
  await new Promise(done => { const s = new WebSocket(at.replace("http", "ws") + "/v1/completions");
    s.onopen = () => { say("websocket", "open"); done(); };
    s.onerror = () => { say("websocket", "refused"); done(); }; });
  await fetch("/told", {method: "POST", body: JSON.stringify(told)});
})();
</script>"""


def serve_page(target: str, told: queue.Queue[dict[str, str]]) -> http.server.ThreadingHTTPServer:
    """A page of another site, which asks the server at `target` and tells what it got."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = (PAGE % target).encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def try_server(browser: str, keys: tuple[str, ...]) -> tuple[dict[str, str], int]:
    """What the page was told, and how many prompts the server prepared for it."""
    from doubles.scripted_engine import ScriptedEngine
    from phobos.counters import Counters
    from phobos.http.listener import Listener
    from phobos.settings import ServeSettings

    engine, listener = ScriptedEngine(), Listener(ServeSettings(listen="127.0.0.1:0", api_keys=keys), Counters())
    listener.bind()
    listener.start()
    listener.attach(engine)
    told: queue.Queue[dict[str, str]] = queue.Queue()
    page = serve_page(listener.address, told)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            command = [
                browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}",
                "--host-resolver-rules=MAP evil.example 127.0.0.1",
                f"http://evil.example:{page.server_address[1]}/",
            ]  # fmt: skip
            running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                return told.get(timeout=60), len(engine.model.prepared)
            finally:
                running.kill()
                running.wait()
    finally:
        page.shutdown()
        listener.close(0)
        engine.close()


def main() -> int:
    """Both servers; 1 where the page got anything done."""
    browser = sys.argv[1] if len(sys.argv) > 1 else next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        print("no Chromium here: nothing was tried")
        return 0
    failed = False
    for keys in ((), ("secret",)):
        told, n_prepared = try_server(browser, keys)
        print(f"{'with a key' if keys else 'without a key'}: {json.dumps(told)}, prompts prepared: {n_prepared}")
        failed |= n_prepared > 0 or told.get("websocket") != "refused" or len(told) < 8
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
