"""What the panels need beyond one snapshot: rates, peaks and history, derived from successive snapshots.

Pure but for the samples kept in `RateMeter`, which has one owner (the dashboard's loop). Rates are tokens per
second of *engine* time, so a pass longer than the interval between snapshots still gives the right rate when it
ends. What was never measured is `None`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from phobos.counters import RequestInfo, Snapshot

#: Seconds over which a present rate is taken.
WINDOW_S = 1.0
#: Seconds between two points of the history, and how many are kept (five minutes).
HISTORY_STEP_S = 0.5
HISTORY_POINTS = 600
#: Engine seconds below which a difference says nothing about a rate.
_SHORTEST_S = 1e-5


@dataclass(frozen=True)
class Rate:
    """Tokens per second of one kind: the newest measurement, its peak, whether it is running now, its history
    (oldest first, 0 where nothing ran)."""

    value: float | None = None
    peak: float | None = None
    active: bool = False
    history: tuple[float, ...] = ()


@dataclass(frozen=True)
class Moment:
    """One snapshot and what was derived at it; all that a panel draws from.

    `load` is the process's share of its processors (0..1), `bandwidth_gbs` what passes read from memory,
    `hit_rate` the share of prompt tokens that were reused, `n_passes` the passes since the previous moment.
    """

    snapshot: Snapshot
    prompt: Rate = Rate()
    decode: Rate = Rate()
    load: float | None = None
    load_history: tuple[float, ...] = ()
    bandwidth_gbs: float | None = None
    hit_rate: float | None = None
    n_passes: int = 0


class RateMeter:
    """Turns snapshots into moments; `observe` is called once a snapshot, in order of time."""

    def __init__(self) -> None:
        self._samples: deque[Snapshot] = deque()
        self._prompt = _TokenMeter("prefill", lambda s: (s.prompt_tokens_computed, s.prompt_s))
        self._decode = _TokenMeter("decode", lambda s: (s.decode_tokens, s.decode_s))
        self._load_history: deque[float] = deque(maxlen=HISTORY_POINTS)
        self._next_point_s: float | None = None

    def observe(self, snapshot: Snapshot) -> Moment:
        """The moment at `snapshot`."""
        previous = self._samples[-1] if self._samples else snapshot
        self._samples.append(snapshot)
        while len(self._samples) > 2 and snapshot.taken_s - self._samples[1].taken_s >= WINDOW_S:
            self._samples.popleft()
        first = self._samples[0]
        load = _load(first, snapshot)
        self._prompt.measure(first, previous, snapshot)
        self._decode.measure(first, previous, snapshot)
        self._record(snapshot, load)
        reused = snapshot.prompt_tokens_reused
        return Moment(
            snapshot,
            prompt=self._prompt.rate(),
            decode=self._decode.rate(),
            load=load,
            load_history=tuple(self._load_history),
            bandwidth_gbs=_bandwidth(first, snapshot),
            hit_rate=reused / snapshot.prompt_tokens if snapshot.prompt_tokens else None,
            n_passes=max(0, snapshot.passes - previous.passes),
        )

    def reset_peaks(self) -> None:
        """Forget the highest rates; the present ones start the new peaks."""
        self._prompt.peak = self._prompt.value if self._prompt.active else None
        self._decode.peak = self._decode.value if self._decode.active else None

    def _record(self, snapshot: Snapshot, load: float | None) -> None:
        """Add as many history points as time has passed for; a stall of the terminal leaves no gap in time."""
        if self._next_point_s is None:
            self._next_point_s = snapshot.taken_s
        n_due = int((snapshot.taken_s - self._next_point_s) / HISTORY_STEP_S) + 1
        for _ in range(min(max(0, n_due), HISTORY_POINTS)):
            self._prompt.record()
            self._decode.record()
            self._load_history.append(load or 0.0)
        if n_due > 0:
            self._next_point_s += n_due * HISTORY_STEP_S


class _TokenMeter:
    """One kind of tokens: `read` gives its counters (tokens, engine seconds) in a snapshot, `phase` is what the
    requests that wait for such tokens are in (a long pass moves no counter until it ends)."""

    def __init__(self, phase: str, read: Callable[[Snapshot], tuple[int, float]]) -> None:
        self.phase = phase
        self.read = read
        self.value: float | None = None
        self.peak: float | None = None
        self.active = False
        self._history: deque[float] = deque(maxlen=HISTORY_POINTS)
        self._unrecorded: float | None = None

    def measure(self, first: Snapshot, previous: Snapshot, last: Snapshot) -> None:
        """Take the rate over the window, or over the newest step where the counters stood still before it."""
        tokens, seconds = self._difference(first, last)
        new_tokens, new_seconds = self._difference(previous, last)
        if new_tokens > 0 and new_seconds > _SHORTEST_S:
            self.value = tokens / seconds
            self._unrecorded = self.value
            self.peak = self.value if self.peak is None else max(self.peak, self.value)
        self.active = tokens > 0 or any(request.phase == self.phase for request in last.live)

    def record(self) -> None:
        """Put the present rate into the history; a burst between two points is kept."""
        self._history.append(self._unrecorded or (self.value if self.active and self.value else 0.0))
        self._unrecorded = None

    def rate(self) -> Rate:
        return Rate(self.value, self.peak, self.active, tuple(self._history))

    def _difference(self, before: Snapshot, after: Snapshot) -> tuple[int, float]:
        (tokens_before, s_before), (tokens, seconds) = self.read(before), self.read(after)
        return tokens - tokens_before, seconds - s_before


def _load(first: Snapshot, last: Snapshot) -> float | None:
    """Processor time used between two snapshots as a share of what the process may use."""
    elapsed = last.taken_s - first.taken_s
    if first.machine is None or last.machine is None or elapsed <= 0:
        return None
    return max(0.0, min(1.0, (last.machine.cpu_s - first.machine.cpu_s) / (elapsed * last.machine.n_cpus)))


def _bandwidth(first: Snapshot, last: Snapshot) -> float | None:
    """Gigabytes a second read by passes between two snapshots."""
    elapsed = last.taken_s - first.taken_s
    if first.bytes_read is None or last.bytes_read is None or elapsed <= 0:
        return None
    return (last.bytes_read - first.bytes_read) / elapsed / 1e9


def request_prompt_rate(request: RequestInfo, now_s: float) -> float | None:
    """Prompt tokens computed per second of wall time, up to the first token."""
    if request.started_s is None:
        return None
    end_s = next((t for t in (request.first_token_s, request.finished_s) if t is not None), now_s)
    done = request.n_prompt_done - request.n_cached
    return done / (end_s - request.started_s) if done > 0 and end_s > request.started_s else None


def request_decode_rate(request: RequestInfo, now_s: float) -> float | None:
    """Tokens generated per second of wall time after the first."""
    if request.first_token_s is None or request.n_generated < 2:
        return None
    end_s = now_s if request.finished_s is None else request.finished_s
    elapsed = end_s - request.first_token_s
    return (request.n_generated - 1) / elapsed if elapsed > 0 else None


def request_first_token_s(request: RequestInfo) -> float | None:
    """Seconds from submission to the first token."""
    return None if request.first_token_s is None else request.first_token_s - request.submitted_s
