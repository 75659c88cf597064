"""`POST /slots/{id}?action=`: llama-server's shapes."""

from __future__ import annotations

from typing import Any

import pytest

from phobos.counters import CacheInfo


def test_save_restore_and_erase(serve: Any) -> None:
    server = serve()
    assert server.post("/slots/0?action=save", {"filename": "a.bin"}).json == {
        "id_slot": 0,
        "filename": "a.bin",
        "n_saved": 7,
        "n_written": 1234,
        "timings": {"save_ms": 500.0},
    }
    assert server.post("/slots/3?action=restore", {"filename": "a.bin", "more": None}).json == {
        "id_slot": 3,
        "filename": "a.bin",
        "n_restored": 7,
        "n_read": 1234,
        "timings": {"restore_ms": 250.0},
    }
    assert server.post("/v1/slots/1?action=erase", {}).json == {"id_slot": 1, "n_erased": 7}
    assert server.post("/slots/1?action=erase", b"").json == {"id_slot": 1, "n_erased": 7}
    assert server.engine.slot_actions.asked == [
        ("save", 0, "a.bin"),
        ("restore", 3, "a.bin"),
        ("erase", 1, ""),
        ("erase", 1, ""),
    ]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/slots/0", {"filename": "a"}, "action"),
        ("/slots/0?action=", {"filename": "a"}, "action"),
        ("/slots/0?action=copy", {"filename": "a"}, "action"),
        ("/slots/one?action=erase", {}, "id_slot"),
        ("/slots/-1?action=erase", {}, "id_slot"),
        ("/slots/99999999999999999999?action=erase", {}, "id_slot"),
        ("/slots/0/1?action=erase", {}, "id_slot"),
        ("/slots/0?action=save", {}, "filename"),
        ("/slots/0?action=save", {"filename": None}, "filename"),
        ("/slots/0?action=save", {"filename": ""}, "filename"),
        ("/slots/0?action=save", {"filename": 7}, "filename"),
        ("/slots/0?action=save", {"filename": "../../a"}, "filename"),
    ],
)
def test_wrong_input_is_told(serve: Any, path: str, body: dict[str, Any], param: str) -> None:
    reply = serve().post(path, body)
    assert (reply.status, reply.error["param"]) == (400, param)


def test_only_posts(serve: Any) -> None:
    reply = serve().get("/slots/0?action=erase")
    assert (reply.status, reply.headers["allow"]) == (405, "POST, OPTIONS")


def test_a_key_is_asked_for(serve: Any) -> None:
    server = serve(api_keys=("secret",))
    assert server.post("/slots/0?action=erase", {}).status == 401
    assert server.engine.slot_actions.asked == []


def test_the_memory_of_conversations_is_measured(serve: Any) -> None:
    server = serve()
    server.counters.cache = CacheInfo(10, 20, 3, 4, n_archived=2, n_files=5, evicted=6, restored=7, files_written=8)
    text = server.get("/metrics").body.decode()
    for line in (
        "phobos_kv_bytes 10.0",
        "phobos_kv_bound_bytes 20.0",
        "phobos_archive_bytes 3.0",
        "phobos_archive_conversations 2.0",
        "phobos_slot_files 5.0",
        "phobos_conversations_evicted_total 6.0",
        "phobos_conversations_restored_total 7.0",
        "phobos_slot_files_written_total 8.0",
    ):
        assert line in text.splitlines()
