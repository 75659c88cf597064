"""What clients may do with a slot by name: save it to a file, fill it from one, empty it.

Called by any thread but the engine's; each call blocks until it is done. The slot is touched between two turns, once
it is idle; files are read and written by the caller's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from phobos.counters import SlotReport
from phobos.engine.slots.residency import Residency
from phobos.engine.slots.slot_files import read_slot_file, write_slot_file
from phobos.engine.slots.store import Store
from phobos.errors import FileError, PhobosError, RequestError, UnavailableError

T = TypeVar("T")


class Call(Protocol):
    """How the engine runs something between two turns, once a slot is idle."""

    def __call__(self, slot: int, work: Callable[[Residency], T]) -> Future[T]: ...


class Calls:
    """What waits to be run on the engine's thread, each for its slot. Any thread adds; the engine runs and refuses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Callable[[Residency], Any], Future[Any]]] = []  # guarded

    def add(self, slot: int, work: Callable[[Residency], T]) -> Future[T]:
        """One more."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((slot, work, future))
        return future

    def run(self, residency: Residency, busy: Collection[int]) -> bool:
        """Those whose slot is not busy; whether there were any. What a call raises is whose it is."""
        with self._lock:
            ready = [call for call in self._waiting if call[0] not in busy]
            self._waiting = [call for call in self._waiting if call[0] in busy]
        for _, work, future in ready:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(residency))
                except Exception as error:
                    future.set_exception(error)
        return bool(ready)

    def refuse(self, error: PhobosError) -> None:
        """The engine has ended."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)


class SlotActions:
    """See the module. Without a store only `erase` can be had."""

    def __init__(self, call: Call, n_slots: int, store: Store | None) -> None:
        self._call = call
        self._n_slots = n_slots
        self._store = store

    def save(self, slot: int, filename: str) -> SlotReport:
        """Write what a slot holds to a file."""
        store = self._stored(slot)
        path = store.folder.named(filename)
        started_s = time.perf_counter()
        if path.is_dir():
            raise RequestError(f"{filename} is a folder: name a file", param="filename")
        contents = self._call(slot, lambda residency: residency.read_out(slot)).result()
        if contents is None:
            raise RequestError(f"slot {slot} is empty: there is nothing to save", param="id_slot")
        try:
            n_bytes = write_slot_file(path, store.identity, contents)
        except OSError as error:
            raise UnavailableError(f"the slot could not be saved: {error.strerror}") from error
        return SlotReport(len(contents.tokens), n_bytes, time.perf_counter() - started_s)

    def restore(self, slot: int, filename: str) -> SlotReport:
        """Make a slot hold what a file has; what it held goes to the archive."""
        store = self._stored(slot)
        path = store.folder.named(filename)
        started_s = time.perf_counter()
        if not path.is_file():
            raise RequestError(f"there is no saved slot {filename}", code="not_found", param="filename")
        try:
            n_bytes = path.stat().st_size
            contents = read_slot_file(path, store.identity)
        except OSError as error:
            raise RequestError(f"{filename} was deleted meanwhile", code="not_found", param="filename") from error
        except FileError as error:
            raise RequestError(str(error), param="filename") from error
        is_done = self._call(slot, lambda residency: residency.read_in(slot, contents)).result()
        if not is_done:
            raise RequestError(f"{filename} does not fit a slot of this server", param="filename")
        return SlotReport(len(contents.tokens), n_bytes, time.perf_counter() - started_s)

    def erase(self, slot: int) -> SlotReport:
        """Empty a slot."""
        self._check(slot)
        started_s = time.perf_counter()
        n_tokens = self._call(slot, lambda residency: residency.erase(slot)).result()
        return SlotReport(n_tokens, 0, time.perf_counter() - started_s)

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self._n_slots:
            raise RequestError(
                f"there is no slot {slot}: this server has slots 0 to {self._n_slots - 1}", param="id_slot"
            )

    def _stored(self, slot: int) -> Store:
        self._check(slot)
        if self._store is None:
            raise RequestError(
                "this server saves no slots: start it with --slot-save-path FOLDER",
                code="not_supported",
                status=501,
                kind="not_supported_error",
            )
        return self._store
