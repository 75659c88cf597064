"""Counts and durations of the listener, and their Prometheus text. Written and read on the listener's loop only.

Counting rules: a failure is no completion; a request cancelled before admission is no admission; what is refused
before the queue (bad input, a wrong key) is not counted; scraping takes no slot.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from phobos.counters import CacheInfo, Snapshot
from phobos.http.admission import RequestQueue

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_LABELS = ("0.001", "0.01", "0.05", "0.1", "0.5", "1", "5", "10", "30", "60", "300", "+Inf")


@dataclass
class Histogram:
    """Durations in seconds, counted by bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Bucket bounds with the number of durations up to each."""
        seen = 0
        rows = []
        for label, count in zip(_LABELS, self.counts, strict=True):
            seen += count
            rows.append((label, float(seen)))
        return rows


@dataclass
class Metrics:
    """What the listener counts."""

    admitted: int = 0
    completed: int = 0
    failed: int = 0
    rejected: int = 0
    timed_out: int = 0
    cancelled: int = 0
    queue_wait: Histogram = field(default_factory=Histogram)
    slot_duration: Histogram = field(default_factory=Histogram)
    first_output: Histogram = field(default_factory=Histogram)
    engine_call: Histogram = field(default_factory=Histogram)

    def scheduler(self, queue: RequestQueue) -> dict[str, int]:
        """The numbers `/health` shows."""
        return {
            "active": queue.n_active,
            "queued": queue.n_waiting,
            "capacity": queue.capacity,
            "max_queue": queue.max_queue,
            "admitted": self.admitted,
            "completed": self.completed,
            "failed": self.failed,
            "rejected": self.rejected,
            "timed_out": self.timed_out,
            "cancelled": self.cancelled,
        }


class _Collector:
    """One scrape."""

    def __init__(self, metrics: Metrics, queue: RequestQueue, snapshot: Snapshot) -> None:
        self._metrics = metrics
        self._queue = queue
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._scheduler()
        yield from self._engine()

    def _scheduler(self) -> Iterator[Metric]:
        metrics, prefix = self._metrics, "phobos_scheduler_"
        gauges = {
            "active": "Admitted requests' places in use",
            "queued": "Requests waiting",
            "capacity": "Slots of the engine",
            "max_queue": "Longest queue allowed",
        }
        values = metrics.scheduler(self._queue)
        for name, text in gauges.items():
            yield GaugeMetricFamily(prefix + name, text, value=values[name])
        counters = {
            "admitted": "Requests admitted to a slot",
            "completed": "Admitted requests that completed",
            "failed": "Admitted requests that failed",
            "rejected": "Requests refused because the queue was full",
            "timed_out": "Requests that timed out in the queue",
            "cancelled": "Requests whose client disconnected, before or after admission",
        }
        for name, text in counters.items():
            yield CounterMetricFamily(prefix + name, text, value=values[name])
        histograms = {
            "queue_wait_seconds": ("Wait until admission", metrics.queue_wait),
            "slot_duration_seconds": ("Admission to release", metrics.slot_duration),
            "first_output_seconds": ("Submission to the first output", metrics.first_output),
            "engine_call_seconds": ("Submission to the end of one choice", metrics.engine_call),
        }
        for name, (text, histogram) in histograms.items():
            yield HistogramMetricFamily(
                prefix + name, text, buckets=histogram.cumulative(), sum_value=histogram.total_s
            )

    def _engine(self) -> Iterator[Metric]:
        now = self._snapshot
        counters = {
            "prompt_tokens": ("Prompt tokens, reused or computed", now.prompt_tokens),
            "prompt_tokens_computed": ("Prompt tokens computed", now.prompt_tokens_computed),
            "prompt_tokens_reused": ("Prompt tokens reused from the KV cache", now.prompt_tokens_reused),
            "generated_tokens": ("Tokens generated", now.generated_tokens),
            "draft_tokens": ("Tokens drafted", now.draft_tokens),
            "draft_tokens_accepted": ("Draft tokens accepted", now.draft_tokens_accepted),
            "prompt_seconds": ("Engine seconds in prefill", now.prompt_s),
            "decode_seconds": ("Engine seconds in decode", now.decode_s),
            "passes": ("Forward passes", now.passes),
            "requests_received": ("Generation requests received", now.requests_received),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily("phobos_" + name, text, value=value)
        if now.draft_tokens:
            share = now.draft_tokens_accepted / now.draft_tokens
            yield GaugeMetricFamily("phobos_draft_acceptance_ratio", "Share of draft tokens accepted", value=share)
        yield GaugeMetricFamily("phobos_uptime_seconds", "Since the start", value=time.monotonic() - now.started_s)
        yield GaugeMetricFamily("phobos_model_loaded", "1 once the model is ready", value=int(now.model is not None))
        if now.model is not None:
            held = sum(slot.n_tokens for slot in now.slots)
            room = now.model.n_ctx * max(1, len(now.slots))
            yield GaugeMetricFamily("phobos_kv_tokens", "Tokens in the KV cache", value=held)
            share = held / room if now.cache is None else now.cache.held_bytes / max(1, now.cache.bound_bytes)
            yield GaugeMetricFamily("phobos_kv_usage_ratio", "Share of the KV cache in use", value=share)
        if now.cache is not None:
            yield from _cache_families(now.cache)


def _cache_families(cache: CacheInfo) -> Iterator[Metric]:
    """The memory of conversations."""
    gauges = {
        "kv_bytes": ("Bytes the slots take", cache.held_bytes),
        "kv_bound_bytes": ("Bytes the slots may take", cache.bound_bytes),
        "archive_bytes": ("Bytes of evicted conversations in memory", cache.archived_bytes),
        "archive_bound_bytes": ("Bytes evicted conversations may take", cache.archive_bound_bytes),
        "archive_conversations": ("Evicted conversations kept in memory", cache.n_archived),
        "slot_files": ("Conversations kept on disk", cache.n_files),
        "slot_files_bytes": ("Bytes of their files", cache.files_bytes),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily("phobos_" + name, text, value=value)
    counters = {
        "conversations_evicted": ("Evicted conversations", cache.evicted),
        "conversations_restored": ("Conversations restored from memory or disk", cache.restored),
        "prompt_tokens_restored": ("Prompt tokens reused after such a restore", cache.tokens_restored),
        "slot_files_written": ("Conversations written to disk", cache.files_written),
        "slot_files_read": ("Conversations read from disk", cache.files_read),
        "slot_files_failed": ("Conversations that could not be written to disk", cache.files_failed),
    }
    for name, (text, value) in counters.items():
        yield CounterMetricFamily("phobos_" + name, text, value=value)


class _LlamaCollector:
    """The names llama-server's dashboards know; what it counts and Phobos does not is left out."""

    def __init__(self, queue: RequestQueue, snapshot: Snapshot) -> None:
        self._queue = queue
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """All families."""
        now = self._snapshot
        counters = {
            "prompt_tokens": ("Prompt tokens computed", now.prompt_tokens_computed),
            "prompt_tokens_cached": ("Prompt tokens reused from the KV cache", now.prompt_tokens_reused),
            "prompt_seconds": ("Time in prompts", now.prompt_s),
            "tokens_predicted": ("Tokens generated", now.generated_tokens),
            "tokens_predicted_seconds": ("Time in decoding", now.decode_s),
            "n_decode": ("Forward passes", now.passes),
            "spec_decode_num_draft_tokens": ("Tokens drafted", now.draft_tokens),
            "spec_decode_num_accepted_tokens": ("Draft tokens accepted", now.draft_tokens_accepted),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily("llamacpp:" + name, text, value=value)
        gauges = {
            "prompt_tokens_seconds": ("Prompt tokens a second", _rate(now.prompt_tokens_computed, now.prompt_s)),
            "predicted_tokens_seconds": ("Generated tokens a second", _rate(now.decode_tokens, now.decode_s)),
            "requests_processing": ("Requests running", self._queue.n_active),
            "requests_deferred": ("Requests waiting", self._queue.n_waiting),
        }
        for name, (text, amount) in gauges.items():
            yield GaugeMetricFamily("llamacpp:" + name, text, value=amount)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def render_metrics(metrics: Metrics, queue: RequestQueue, snapshot: Snapshot, *, with_llamacpp: bool = False) -> bytes:
    """The text of `/metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics, queue, snapshot))
    if with_llamacpp:
        registry.register(_LlamaCollector(queue, snapshot))
    return generate_latest(registry)
