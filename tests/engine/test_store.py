"""Conversations on disk: whole or not at all, for whom they were written, and back after a restart."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.engine.slots.archive import Archived
from phobos.engine.slots.slot_files import Identity, read_head, read_slot_file, write_slot_file
from phobos.engine.slots.store import KEPT_FOLDER, Folder, Store
from phobos.errors import FileError, RequestError, UnavailableError, UsageError

MakeBench = Callable[..., Any]
OURS = Identity("a model", "f16/f16", "0.1 cpu")


def contents_of(text: str, states: dict[int, bytes] | None = None) -> Archived:
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    return Archived(tokens, random.Random(text).randbytes(500), states or {})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "a.slot"
    assert write_slot_file(path, OURS, contents_of("hello", {3: b"abc", 1: b""})) == path.stat().st_size
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "slots")
    yield folder
    folder.close()


# Files


def test_what_was_written_is_read(saved: Path) -> None:
    contents, expected = read_slot_file(saved, OURS), contents_of("hello", {3: b"abc", 1: b""})
    assert contents.tokens.tolist() == expected.tokens.tolist()
    assert (contents.data, contents.states) == (expected.data, expected.states)
    assert read_head(saved).tokens.tolist() == expected.tokens.tolist()
    assert [path.name for path in saved.parent.iterdir()] == ["a.slot"], "nothing is left aside"


def test_no_bit_may_differ(saved: Path) -> None:
    whole = saved.read_bytes()
    rng = random.Random(5)
    places = {*range(0, 60), *(rng.randrange(len(whole)) for _ in range(200)), len(whole) - 1}
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        saved.write_bytes(damaged)
        with pytest.raises(FileError, match=r"damaged"):
            read_slot_file(saved, OURS)


def test_no_byte_may_be_missing_or_too_many(saved: Path) -> None:
    whole = saved.read_bytes()
    for data in (*(whole[:n] for n in range(0, len(whole), 37)), whole[:-1], whole + b"\0", b"", b"GGUF" + whole):
        saved.write_bytes(data)
        with pytest.raises(FileError, match="damaged"):
            read_slot_file(saved, OURS)
    saved.unlink()
    with pytest.raises(FileError, match=r"cannot read a\.slot"):
        read_slot_file(saved, OURS)


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"model": "b"}, "another model"), ({"cache": "q8_0/f16"}, "other cache types"), ({"version": "0.2"}, "version")],
)
def test_others_are_refused(saved: Path, changes: dict[str, str], what: str) -> None:
    with pytest.raises(FileError, match=what):
        read_slot_file(saved, replace(OURS, **changes))


def test_a_write_that_fails_leaves_what_was_there(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_slot_file(saved, OURS, contents_of("other"))
    assert saved.read_bytes() == before
    assert len(list(saved.parent.iterdir())) == 1


# The folder


def test_writes_to_one_name_side_by_side_leave_one_of_them_whole(saved: Path) -> None:
    texts = ["a" * 3000, "b" * 200_000]
    faults: list[Exception] = []

    def work(text: str) -> None:
        try:
            for _ in range(15):
                write_slot_file(saved, OURS, contents_of(text))
                assert len(read_slot_file(saved, OURS).tokens) in map(len, texts)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == [] and [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_one_server_a_folder(folder: Folder) -> None:
    with pytest.raises(UsageError, match="another server uses"):
        Folder(folder.path)
    folder.close()
    Folder(folder.path).close()


def test_what_was_cut_off_is_cleared_away(folder: Folder) -> None:
    folder.close()
    for place in (folder.path, folder.kept):
        (place / "x.slot.123.part").write_bytes(b"half")
    (folder.path / "mine.slot").write_bytes(b"whole")
    Folder(folder.path).close()
    assert sorted(path.name for path in folder.path.rglob("*.*")) == [".lock", "mine.slot"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot use --slot-save-path"):
        Folder(tmp_path / "file")


@pytest.mark.parametrize("name", ["a", "a.bin", "My slot 3.slot", "x" * 200])
def test_plain_names(folder: Folder, name: str) -> None:
    assert folder.named(name).parent == folder.path


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../a", "a/b", "/etc/passwd", "a\\b", "C:a", ".lock", KEPT_FOLDER, "kept/a", "a\0", "a\n",
     "x" * 201, "~", "a.", "a ", "%2e%2e", "a.part", "ä", "-rf", "a*"],
)  # fmt: skip
def test_names_that_leave_the_folder_or_are_odd(folder: Folder, name: str) -> None:
    with pytest.raises(RequestError, match="plain file name") as refused:
        folder.named(name)
    assert refused.value.param == "filename"


# The store


def put(store: Store, text: str, **fields: Any) -> None:
    store.write(contents_of(text, **fields), wait=True)


def found(store: Store, text: str) -> tuple[str, int] | None:
    hit = store.find(contents_of(text).tokens)
    return None if hit is None else (bytes(hit[0].tokens.astype(np.uint8)).decode(), hit[1])


def test_a_store_outlives_its_server(folder: Folder) -> None:
    store = Store(folder, OURS, 100_000)
    put(store, "s" * 40 + "abc")
    put(store, "s" * 40 + "abde", states={7: b"state"})
    store.close()
    again = Store(Folder(folder.path), OURS, 100_000)
    assert found(again, "s" * 40 + "abdx") == ("s" * 40 + "abde", 43)
    hit = again.find(contents_of("s" * 40 + "abdx").tokens)
    assert hit is not None
    contents = again.read(hit[0])
    assert contents is not None and contents.data == contents_of("s" * 40 + "abde").data
    assert contents.states == {7: b"state"}
    again.close()


def test_the_longer_replaces_what_begins_it(folder: Folder) -> None:
    store = Store(folder, OURS, 100_000)
    put(store, "a" * 40)
    assert not store.wants(contents_of("a" * 39).tokens) and store.wants(contents_of("a" * 41).tokens)
    put(store, "a" * 60)
    assert len(store) == len(list(folder.kept.iterdir())) == 1
    assert not store.wants(contents_of("b" * 10).tokens), "too short to be worth it"


def test_the_bound_holds_and_the_one_not_used_for_longest_goes(folder: Folder) -> None:
    store = Store(folder, OURS, 3000)
    for letter in "abc":
        put(store, letter * 40)
    assert len(store) == 3
    hit = store.find(contents_of("a" * 50).tokens)
    assert hit is not None and store.read(hit[0]) is not None
    put(store, "d" * 40)
    assert [found(store, letter * 50) is not None for letter in "abcd"] == [True, False, True, True]
    assert sum(path.stat().st_size for path in folder.kept.iterdir()) == store.n_bytes <= 3000


def test_damaged_files_are_deleted_and_others_left_alone(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(folder, OURS, 100_000)
    for letter in "abc":
        put(store, letter * 40)
    paths = {letter: store.find(contents_of(letter * 50).tokens)[0].path for letter in "abc"}  # type: ignore[index]
    paths["a"].write_bytes(paths["a"].read_bytes()[:100])
    body = bytearray(paths["b"].read_bytes())
    body[-1] ^= 1
    write_slot_file(paths["c"], replace(OURS, model="other"), contents_of("c" * 40))
    logging.getLogger("phobos").propagate = True
    again = Store(folder, OURS, 100_000)
    assert (found(again, "a" * 50), found(again, "c" * 50)) == (None, None)
    assert not paths["a"].exists() and paths["c"].exists()
    paths["b"].write_bytes(body)
    hit = again.find(contents_of("b" * 50).tokens)
    assert hit is not None and again.read(hit[0]) is None, "the body is checked when it is read"
    assert not paths["b"].exists() and len(again) == 0


def test_a_full_disk_is_left_in_peace(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(folder, OURS, 100_000)

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phobos.engine.slots.store.write_slot_file", full)
    put(store, "a" * 40)
    assert (store.n_failed, store.can_write, len(store)) == (1, False, 0)


# The engine


@pytest.fixture
def restart(make_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`restart()`: a server with a store over the folder; the one before it, if it runs, is ended."""
    monkeypatch.setattr("phobos.engine.slots.residency.SETTLE_S", 0.01)
    benches: list[Any] = []

    def start(identity: Identity = OURS, **options: Any) -> Any:
        for bench in benches:
            bench.engine.close()
        bench = make_bench(**{"n_ctx": 200, "n_slots": 2, **options})
        bench.engine.close()
        bench.backend.is_closed = False
        bench.backend._threads.clear()
        limits = bench.backend.limits
        store = Store(Folder(tmp_path / "slots"), identity, 1 << 20, can_cut=limits.can_cut)
        bench.counters = Counters()
        bench.engine = Engine(bench.model, bench.counters, store)
        bench.engine.start()
        benches.append(bench)
        return bench

    yield start
    for bench in benches:
        bench.engine.close()


def cached(reply: Any) -> int:
    return int(reply.last.usage.n_cached)


@pytest.mark.parametrize("can_cut", [True, False])
def test_conversations_go_on_after_a_restart(restart: Callable[..., Any], can_cut: bool) -> None:
    bench = restart(can_cut=can_cut, archive_bytes=1 << 20)
    texts = [bench.ask(letter * 60, max_tokens=8).text for letter in "abcd"]
    again = restart(can_cut=can_cut)
    assert again.counters.cache.n_files == 4, "slots and archive"
    for letter, text in zip("abcd", texts, strict=True):
        reply = again.ask(letter * 60, max_tokens=8)
        assert reply.text == text
        assert cached(reply) == (60 if can_cut else 53)
    assert again.counters.cache.files_read == 4


def test_a_smaller_context_after_a_restart(restart: Callable[..., Any]) -> None:
    text = restart().ask("a" * 150, max_tokens=8).text
    small = restart(n_ctx=100)
    assert cached(small.ask("a" * 60 + "b", max_tokens=2)) == 61
    assert restart().ask("a" * 150, max_tokens=8).text == text


def test_contents_that_do_not_fit_are_deleted(
    restart: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = restart().ask("a" * 60, max_tokens=8).text
    again = restart()
    monkeypatch.setattr(again.backend, "restore", lambda *arguments: (_ for _ in ()).throw(ValueError("odd")))
    reply = again.ask("a" * 60, max_tokens=8)
    assert (reply.text, cached(reply)) == (text, 0)
    assert list((tmp_path / "slots" / KEPT_FOLDER).iterdir()) == []


def test_they_are_written_while_nothing_runs(restart: Callable[..., Any], tmp_path: Path) -> None:
    bench = restart()
    bench.ask("a" * 60, max_tokens=8)
    bench.ask("b" * 60, max_tokens=8)
    deadline_s = time.monotonic() + 10
    while len(list((tmp_path / "slots" / KEPT_FOLDER).glob("*.slot"))) < 2:
        assert time.monotonic() < deadline_s, "they were never written"
        time.sleep(0.01)
    assert bench.engine.alive


def test_nobody_waits_for_the_look_at_what_is_kept(
    restart: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = restart()
    bench.ask("a" * 50, max_tokens=1)
    looked, go_on = threading.Event(), threading.Event()

    def wants(store: Store, tokens: Any) -> bool:
        looked.set()
        assert go_on.wait(10)
        return False

    monkeypatch.setattr(Store, "wants", wants)
    bench.ask("b" * 50, max_tokens=1)
    assert looked.wait(5)
    began_s = time.monotonic()
    collector, _ = bench.submit(bench.request("c"))
    took_s = time.monotonic() - began_s
    go_on.set()
    collector.wait()
    assert took_s < 2


@pytest.mark.parametrize("changes", [{"model": "b"}, {"cache": "x"}, {"version": "0.2"}])
def test_another_model_starts_clean(restart: Callable[..., Any], changes: dict[str, str]) -> None:
    text = restart().ask("a" * 60, max_tokens=8).text
    other = restart(replace(OURS, **changes))
    reply = other.ask("a" * 60, max_tokens=8)
    assert (reply.text, cached(reply)) == (text, 0)
    assert cached(restart().ask("a" * 60, max_tokens=8)) == 60, "what was another's is still there"


# By name


def test_save_restore_and_erase(restart: Callable[..., Any], tmp_path: Path) -> None:
    bench = restart()
    text = bench.ask("a" * 60, max_tokens=8, cache_slot=1).text
    actions = bench.engine.slot_actions
    report = actions.save(1, "mine.bin")
    assert (report.n_tokens, report.n_bytes) == (68, (tmp_path / "slots" / "mine.bin").stat().st_size)
    assert actions.erase(1).n_tokens == 68
    assert actions.erase(1).n_tokens == 0
    assert bench.counters.slots[1].n_tokens == 0
    with pytest.raises(RequestError, match="slot 1 is empty"):
        actions.save(1, "empty.bin")
    bench.ask("b" * 60, max_tokens=8, cache_slot=0)
    assert actions.restore(0, "mine.bin") == replace(report, seconds=pytest.approx(0, abs=5))
    reply = bench.ask("a" * 60, max_tokens=8, cache_slot=0)
    assert (reply.text, cached(reply)) == (text, 60)


def test_actions_wait_for_their_slot_and_end_with_the_server(restart: Callable[..., Any]) -> None:
    bench = restart(script=lambda tokens: 5)
    bench.backend.gate.clear()
    _, ticket = bench.submit(bench.request("a" * 40, cache_slot=0))
    bench.backend.entered.acquire(timeout=10)
    waiting = bench.engine.call(0, lambda residency: residency.erase(0))
    other = bench.engine.call(1, lambda residency: 1 / 0)
    bench.backend.gate.set()
    with pytest.raises(ZeroDivisionError):
        other.result(10)
    ticket.cancel()
    assert waiting.result(10) > 40
    assert bench.engine.alive
    bench.engine.close()
    with pytest.raises(UnavailableError):
        bench.engine.call(0, lambda residency: 0)


@pytest.mark.parametrize(
    ("name", "message"), [("none.bin", "no saved slot"), ("bad.bin", "damaged"), ("../x", "plain")]
)
def test_files_that_cannot_be_restored(restart: Callable[..., Any], tmp_path: Path, name: str, message: str) -> None:
    actions = restart().engine.slot_actions
    (tmp_path / "slots" / "bad.bin").write_bytes(b"PHSLOT\x00\x01")
    with pytest.raises(RequestError, match=message) as refused:
        actions.restore(0, name)
    assert refused.value.status == 400


def test_what_does_not_fit_is_refused_and_the_slot_is_empty(restart: Callable[..., Any], tmp_path: Path) -> None:
    bench = restart()
    write_slot_file(tmp_path / "slots" / "long", OURS, contents_of("a" * 201))
    write_slot_file(tmp_path / "slots" / "odd", OURS, contents_of("a" * 50))
    for name in ("long", "odd"):
        with pytest.raises(RequestError, match="does not fit"):
            bench.engine.slot_actions.restore(0, name)
    assert cached(bench.ask("a" * 60, max_tokens=2)) == 0


def test_without_a_folder_slots_can_only_be_erased(make_bench: MakeBench) -> None:
    actions = make_bench().engine.slot_actions
    assert actions.erase(0).n_tokens == 0
    with pytest.raises(RequestError, match="--slot-save-path") as refused:
        actions.save(0, "a")
    assert refused.value.status == 501
    with pytest.raises(RequestError, match="no slot 2"):
        actions.erase(2)
