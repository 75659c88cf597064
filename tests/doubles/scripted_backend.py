"""A backend and a tokenizer without weights, for tests of the engine.

The logits of a row are a function of the tokens of its own slot up to its position and of nothing else, like those of
a real backend; a slot that holds other tokens than the engine thinks, or a batch that mixes rows up, changes the text.
Every misuse of the interface that would go unnoticed with real weights raises `AssertionError` here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from phobos.counters import CardInfo, ModelInfo
from phobos.engine.model import Model
from phobos.gguf.stream_decoder import StreamDecoder
from phobos.kernels.backend import BackendLimits, Batch, find_best
from phobos.settings import EngineSettings, SamplingDefaults

MASK = (1 << 64) - 1
BOS, END = 0, 1
ROW_BYTES = 12  # of a row that is held or saved


class ScriptedTokenizer:
    """Token 0 is BOS, token 1 ends the turn, the others stand for `pieces`; both have no text of their own."""

    bos_id, eos_id, add_bos = BOS, END, True
    end_ids = frozenset([END])
    control_ids = frozenset([BOS, END])
    infill_ids = None

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self._pieces = [b"<s>", b"</s>", *(p if isinstance(p, bytes) else p.encode() for p in pieces)]
        self.n_vocab = len(self._pieces)

    def piece(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def id_of(self, piece: str | bytes) -> int:
        return self._pieces.index(piece if isinstance(piece, bytes) else piece.encode(), 2)

    def least_tokens(self, text: str) -> int:
        return 0

    def encode(self, text: str, *, special: bool = False, bos: bool = False, continues: bool = False) -> list[int]:
        ids, data = [BOS] if bos else [], text.encode()
        while data:
            found = max((p for p in self._pieces[2:] if p and data.startswith(p)), key=len)
            ids.append(self._pieces.index(found, 2))
            data = data[len(found) :]
        return ids

    def encode_runs(self, runs: Iterable[tuple[str, bool]], **_: object) -> list[int]:
        return [
            i
            for text, is_token in runs
            for i in ([self._pieces.index(text.encode())] if is_token else self.encode(text))
        ]

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        decoder = self.stream_decoder(special=special)
        return "".join([*(decoder.push(i) for i in ids), decoder.flush()])

    def stream_decoder(
        self, *, special: bool = False, continues: bool = False, shown: frozenset[int] = frozenset()
    ) -> StreamDecoder:
        hidden: frozenset[int] = frozenset() if special else self.control_ids - shown
        return StreamDecoder(self.piece, hidden.__contains__, False)


def _extend(value: int, token: int) -> int:
    return (value * 6364136223846793005 + token + 1442695040888963407) & MASK


class ScriptedBackend:
    """See the module. `script(tokens)` may name the token that follows; None leaves it to the hash of the tokens.

    Without `can_cut` a slot goes on only where it stands, or from a state put back.

    `row_s` and `pass_s` make passes take time; `gate`, while clear, keeps `run` from returning; the pass numbered
    `fails_at` raises `error`.
    """

    def __init__(
        self,
        n_vocab: int,
        *,
        n_ctx: int = 64,
        n_slots: int = 2,
        max_rows: int = 64,
        script: Callable[[tuple[int, ...]], int | None] | None = None,
        can_cut: bool = True,
        fork_block: int = 0,
        cache_rows: int | None = None,
        chooses: bool = False,
    ) -> None:
        cache_bytes = None if cache_rows is None else cache_rows * ROW_BYTES
        self.limits = BackendLimits(
            n_ctx, n_slots, max_rows, n_slots + 4, n_vocab, can_cut, fork_block, cache_bytes, chooses=chooses
        )
        self.bytes_read: int | None = 0
        self.script = script
        self.row_s = self.pass_s = 0.0
        self.fails_at: int | None = None
        self.error: Exception = RuntimeError("the scripted backend was told to fail")
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.batches: list[Batch] = []
        self.chosen: list[int] = []  # the batches, by number, of which tokens were asked for and no logits
        self.copies: list[tuple[int, int, int]] = []
        self.released: list[int] = []
        self.saves: list[tuple[int, int]] = []
        self.most_bytes = 0
        self.restored: list[tuple[int, int]] = []
        self.is_closed = False
        self._held: list[list[int]] = [[] for _ in range(n_slots)]
        self._hashes: list[list[int]] = [[] for _ in range(n_slots)]
        self._placed: list[dict[int, int]] = [{} for _ in range(n_slots)]  # tokens of forks, by place
        self._stands: list[int | None] = [0] * n_slots  # where a slot that cannot be cut back goes on
        self._logits = np.empty((self.limits.max_outputs, n_vocab), np.float32)
        self._threads: set[int] = set()

    def run(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.float32]]:
        self._check(batch)
        self.batches.append(batch)
        self.bytes_read = 1000 * len(self.batches)
        self.entered.release()
        assert self.gate.wait(20), "the gate stayed shut"
        if self.row_s or self.pass_s:
            time.sleep(self.pass_s + self.row_s * len(batch.tokens))
        if self.fails_at == len(self.batches):
            raise self.error
        self._logits.fill(np.nan)  # views of an earlier pass are overwritten
        place = 0
        for row, (token, position, slot) in enumerate(
            zip(batch.tokens.tolist(), batch.positions.tolist(), batch.slots.tolist(), strict=True)
        ):
            shift = 0 if batch.places is None else int(batch.places[row]) - position
            if shift and batch.shared is not None:
                held, hashes = self._read_fork(slot, position, int(batch.shared[row]), shift)
                self._placed[slot][position + shift] = token
            else:
                held, hashes = self._held[slot], self._hashes[slot]
            del held[position:], hashes[position:]
            held.append(token)
            self._stands[slot] = position + 1
            hashes.append(_extend(hashes[-1] if hashes else 17, token))
            if place < len(batch.outputs) and batch.outputs[place] == row:
                self._logits[place] = self._row(tuple(held), hashes[-1])
                place += 1
        self._check_bound()
        return self._logits[: len(batch.outputs)]

    def choose(self, batch: Batch, n_vocab: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        assert self.limits.chooses and len(batch.outputs)
        self.chosen.append(len(self.batches))
        return find_best(self.run(batch)[:, :n_vocab])

    def _read_fork(self, slot: int, position: int, shared: int, shift: int) -> tuple[list[int], list[int]]:
        """What a fork's row reads before it, and the hashes of that."""
        block = self.limits.fork_block
        assert block and shared % block == 0 and shift % block == 0 and shared <= min(position, len(self._held[slot]))
        held = self._held[slot][:shared] + [self._placed[slot][p + shift] for p in range(shared, position)]
        hashes: list[int] = []
        for token in held:
            hashes.append(_extend(hashes[-1] if hashes else 17, token))
        return held, hashes

    def _row(self, tokens: tuple[int, ...], seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        row = np.random.default_rng(seed).standard_normal(self.limits.n_vocab).astype(np.float32) * 3
        wanted = self.script(tokens) if self.script else None
        if wanted is not None:
            row[wanted] = 60
        return row

    def _check(self, batch: Batch) -> None:
        assert not self.is_closed, "run after close"
        self._check_thread()
        n = len(batch.tokens)
        assert 0 < n <= self.limits.max_rows and len(batch.outputs) <= self.limits.max_outputs
        for array in (batch.tokens, batch.positions, batch.slots, batch.outputs):
            assert array.dtype == np.int32 and array.ndim == 1
        assert len(batch.positions) == len(batch.slots) == n
        assert ((batch.tokens >= 0) & (batch.tokens < self.limits.n_vocab)).all()
        assert (np.diff(batch.outputs) > 0).all() and (batch.outputs < n).all()
        if batch.places is not None:
            assert batch.shared is not None and (batch.places < self.limits.n_ctx).all() and self.limits.fork_block
            pairs = list(zip(batch.slots.tolist(), batch.places.tolist(), strict=True))
            assert len(set(pairs)) == n, "two rows at one place"
            return
        changes = np.flatnonzero(np.diff(batch.slots)) + 1
        runs = np.split(np.arange(n), changes)
        slots = [int(batch.slots[run[0]]) for run in runs]
        assert len(set(slots)) == len(slots), "rows of one slot must be neighbours"
        for slot, run in zip(slots, runs, strict=True):
            positions = batch.positions[run]
            assert (np.diff(positions) == 1).all() and positions[-1] < self.limits.n_ctx
            assert positions[0] <= len(self._held[slot]), "a row must continue what its slot holds"
            if not self.limits.can_cut:
                assert positions[0] in (0, self._stands[slot]), "a row must go on where its slot stands"

    def _check_thread(self) -> None:
        self._threads.add(threading.get_ident())
        assert len(self._threads) == 1, "the backend belongs to one thread"

    def copy_rows(self, source: int, target: int, n_rows: int) -> None:
        self._check_thread()
        assert source != target and 0 < n_rows <= len(self._held[source])
        self.copies.append((source, target, n_rows))
        self._held[target] = self._held[source][:n_rows]
        self._hashes[target] = self._hashes[source][:n_rows]
        self._stands[target] = n_rows if self._stands[source] == n_rows else None
        self._check_bound()

    def copy_within(self, slot: int, source: int, target: int, n_rows: int) -> None:
        self._check_thread()
        placed, held = self._placed[slot], self._held[slot]
        for i in range(n_rows):
            placed[target + i] = placed[source + i] if source + i in placed else held[source + i]

    def save_state(self, slot: int) -> bytes:
        self._check_thread()
        stands = self._stands[slot]
        assert not self.limits.can_cut and stands is not None
        return np.array(self._held[slot][:stands], np.int32).tobytes()

    def restore_state(self, slot: int, n_rows: int, data: bytes) -> None:
        self._check_thread()
        assert data == np.array(self._held[slot][:n_rows], np.int32).tobytes(), "a state of other tokens"
        self.restored.append((slot, n_rows))
        self._stands[slot] = n_rows

    def release(self, slot: int, keep: int = 0) -> None:
        self._check_thread()
        if keep == 0:
            self._stands[slot] = 0
            if self._held[slot]:
                self.released.append(slot)
        del self._held[slot][keep:], self._hashes[slot][keep:]
        self._placed[slot] = {place: token for place, token in self._placed[slot].items() if place < keep}

    def slot_bytes(self, n_rows: int) -> int:
        return ROW_BYTES * n_rows

    def save(self, slot: int, n_rows: int) -> bytes:
        self._check_thread()
        assert 0 < n_rows <= len(self._held[slot])
        assert self.limits.can_cut or self._stands[slot] == n_rows, "a slot is saved where it stands"
        self.saves.append((slot, n_rows))
        pairs = zip(self._held[slot][:n_rows], self._hashes[slot][:n_rows], strict=True)
        return np.array([(token, seen >> 32, seen & 0xFFFFFFFF) for token, seen in pairs], np.uint32).tobytes()

    def restore(self, slot: int, n_rows: int, data: bytes, n_saved: int) -> None:
        self._check_thread()
        if len(data) != ROW_BYTES * n_saved:
            raise ValueError("the bytes do not fit")
        assert 0 < n_rows <= n_saved and (self.limits.can_cut or n_rows == n_saved)
        assert not self._held[slot], "an empty slot is filled"
        rows = np.frombuffer(data, np.uint32).reshape(-1, 3)[:n_rows].tolist()
        self._held[slot] = [token for token, _, _ in rows]
        self._hashes[slot] = [high << 32 | low for _, high, low in rows]
        self._stands[slot] = n_rows
        self._check_bound()

    def _check_bound(self) -> None:
        held = sum(map(len, self._held)) * ROW_BYTES
        self.most_bytes = max(self.most_bytes, held)
        assert self.limits.cache_bytes is None or held <= self.limits.cache_bytes, "more is held than may be"

    def describe(self) -> CardInfo:
        return CardInfo("scripted", "cpu", "none", 1)

    def memory(self) -> dict[str, int]:
        return {"weights": 0, "cache": 0, "scratch": 0}

    def close(self) -> None:
        self.is_closed = True


def make_model(tokenizer: ScriptedTokenizer, backend: ScriptedBackend, **changes: Any) -> Model:
    """A `Model` around them; `changes` are fields of `Model`, or of its settings."""
    fields = {name: changes.pop(name) for name in list(changes) if name in Model.__dataclass_fields__}
    limits = backend.limits
    values: dict[str, Any] = {
        "path": Path("scripted.gguf"),
        "label": "GGUF, scripted",
        "architecture": "scripted",
        "created": 0,
        "n_ctx": limits.n_ctx,
        "n_slots": limits.n_slots,
        "tokenizer": tokenizer,
        "template": None,
        "backend": backend,
        "sampling": SamplingDefaults(),
        "settings": EngineSettings(Path("scripted.gguf"), **changes),
        "info": ModelInfo("scripted", "scripted", "F32", 0, limits.n_ctx, 1, limits.n_vocab, "plain", 0, 0, 0),
    }
    return Model(**(values | fields))


class Collector:
    """A sink that keeps its events; `wait` returns them once the last one came."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._done = threading.Event()
        self._changed = threading.Condition()

    def __call__(self, event: Any) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        if type(event).__name__ in ("Finished", "Failed"):
            self._done.set()

    def wait(self, timeout_s: float = 20.0) -> SimpleNamespace:
        assert self._done.wait(timeout_s), f"no end came, only {self.events}"
        return self.fold()

    def wait_for(self, kind: type | tuple[type, ...], count: int = 1, timeout_s: float = 20.0) -> None:
        with self._changed:
            enough = lambda: sum(isinstance(e, kind) for e in self.events) >= count  # noqa: E731
            assert self._changed.wait_for(enough, timeout_s), f"no {kind} came, only {self.events}"

    def fold(self) -> SimpleNamespace:
        """The whole reply: text, log-probability entries, first and last event."""
        deltas = [e for e in self.events if type(e).__name__ == "TextDelta"]
        return SimpleNamespace(
            text="".join(d.text for d in deltas),
            entries=[entry for d in deltas for entry in d.logprobs],
            started=next((e for e in self.events if type(e).__name__ == "Started"), None),
            last=self.events[-1] if self.events else None,
        )
