"""Made-up snapshots of every state, for pictures and pilots. All times are fixed, so pictures are too."""

from __future__ import annotations

from dataclasses import replace

from phobos.counters import (
    CardInfo,
    Counters,
    LoadProgress,
    MachineUse,
    ModelInfo,
    RequestInfo,
    SlotInfo,
    Snapshot,
)

#: The moment all snapshots are taken at; the server started 192 seconds before.
NOW_S = 10_000.0

MODEL = ModelInfo(
    name="SmolLM2-135M-Instruct",
    architecture="llama",
    quantization="Q4_1",
    n_params=134_515_008,
    n_ctx=8192,
    n_layers=30,
    n_vocab=49_152,
    dialect="chatml",
    weights_bytes=98_362_432,
    cache_bytes=754_974_720,
    scratch_bytes=41_943_040,
    layer_kinds=("full",) * 30,
)
CARD = CardInfo("AMD EPYC 9R14", "cpu", "AVX-512 VNNI", 2, bandwidth_limit_gbs=44.0)
MACHINE = MachineUse(
    cpu_s=50.0, n_cpus=2, process_bytes=1_060_000_000, free_bytes=24_800_000_000, total_bytes=33_300_000_000
)
LOADED = LoadProgress("ready", 1.0, kernels_total=41, kernels_compiled=3, kernels_cached=38)


def request(number: int, phase: str, **changes: object) -> RequestInfo:
    """A request in `phase` that came `number` seconds ago."""
    submitted = NOW_S - number
    made = RequestInfo(
        request_id=f"chatcmpl-{number:08x}c0ffee",
        phase=phase,
        slot=None,
        n_prompt=1200,
        n_cached=0,
        n_prompt_done=0,
        n_generated=0,
        submitted_s=submitted,
    )
    if phase != "queued":
        made = replace(made, slot=number % 4, n_cached=400, n_prompt_done=800, started_s=submitted + 0.05)
    if phase in ("decode", "done"):
        made = replace(made, n_prompt_done=1200, n_generated=64, first_token_s=submitted + 0.9)
    if phase == "done":
        made = replace(made, n_generated=180, finished_s=submitted + 4.9, finish_reason="stop")
    return replace(made, **changes)  # type: ignore[arg-type]


def blank() -> Snapshot:
    """A server that has just begun to load."""
    return replace(
        Counters().snapshot(),
        taken_s=NOW_S,
        started_s=NOW_S - 3.2,
        address="http://127.0.0.1:8080",
        machine=replace(MACHINE, process_bytes=210_000_000),
    )


def loading_cold() -> Snapshot:
    """Kernels are being compiled."""
    load = LoadProgress(
        "compiling kernels", 0.43, "matmul_q4_1", 41, 11, 4, slowest_kernel="attention_f16", slowest_kernel_s=8.21
    )
    return replace(blank(), load=load, started_s=NOW_S - 38.0, queue_depth=2)


def loading_warm() -> Snapshot:
    """Kernels came from the cache; weights are being packed."""
    load = LoadProgress("packing weights", 0.78, "blk.22.ffn_down.weight", 41, 0, 41)
    return replace(blank(), load=load)


def load_failed() -> Snapshot:
    """The file was damaged."""
    error = "the file model.gguf ends before its tensor blk.3.attn_q.weight does: download it again"
    return replace(blank(), state="FAILED", load=LoadProgress("failed", 0.12, error=error))


def idle() -> Snapshot:
    """Loaded, no prompts yet."""
    return replace(
        blank(),
        started_s=NOW_S - 192.0,
        state="IDLE",
        load=LOADED,
        model=MODEL,
        card=CARD,
        machine=MACHINE,
        slots=tuple(SlotInfo(i, 0, busy=False, last_used_s=NOW_S - 192.0) for i in range(4)),
        bytes_read=0,
    )


def busy(state: str, live: tuple[RequestInfo, ...], n_done: int) -> Snapshot:
    """`live` requests after `n_done` finished ones."""
    recent = tuple(
        request(20 + 7 * i, "done", finish_reason=("stop", "length", "tool_calls", "cancelled", "error")[i % 5])
        for i in range(n_done)
    )
    held = (1380, 4020, 0, 655)
    taken = {r.slot for r in live}
    return replace(
        idle(),
        state=state,
        live=live,
        recent=recent,
        requests_received=len(live) + n_done,
        requests_admitted=len(live) + n_done,
        requests_completed=n_done,
        prompt_tokens=1200 * n_done + 1200,
        prompt_tokens_reused=400 * n_done,
        prompt_tokens_computed=800 * n_done + 400,
        generated_tokens=180 * n_done + 64,
        decode_tokens=180 * n_done + 64,
        prompt_s=0.85 * n_done + 0.4,
        decode_s=4.0 * n_done + 1.5,
        passes=200 * n_done + 70,
        bytes_read=20_000_000_000 * n_done,
        slots=tuple(SlotInfo(i, n, busy=i in taken, last_used_s=NOW_S - 9.0 * i) for i, n in enumerate(held)),
    )


def prompt() -> Snapshot:
    """One request whose prompt is being read."""
    return busy("PREFILL", (request(1, "prefill"),), 3)


def decode() -> Snapshot:
    """One request that is being answered."""
    return busy("DECODE", (request(2, "decode"),), 3)


def eight() -> Snapshot:
    """Eight requests at once: more than there are slots."""
    live = (
        *(request(i, "decode", n_generated=31 * i) for i in (5, 6, 7)),
        request(4, "prefill"),
        *(request(i, "queued") for i in (3, 2, 1)),
        request(8, "queued"),
    )
    return replace(busy("DECODE", live, 12), queue_depth=2)


def failed() -> Snapshot:
    """The engine stopped while it answered."""
    return replace(decode(), state="FAILED", live=(), failure="the engine stopped: the worker team lost a thread")


def no_card() -> Snapshot:
    """Neither card nor machine report anything."""
    return replace(decode(), card=None, machine=None, bytes_read=None, slots=())


STATES = {
    "loading-cold": loading_cold,
    "loading-warm": loading_warm,
    "load-failed": load_failed,
    "idle": idle,
    "prompt": prompt,
    "decode": decode,
    "eight-requests": eight,
    "failed": failed,
    "no-card": no_card,
}


def history(last: Snapshot) -> list[Snapshot]:
    """Snapshots that lead to `last`, a second apart, with rates that rise and fall, for plots with something in
    them; only `last` where nothing was computed yet."""
    if not last.generated_tokens:
        return [last]
    made: list[Snapshot] = []
    machine = last.machine
    for ago in range(120, 0, -1):
        wave = 1 + 0.35 * ((ago * 7) % 11) / 11
        burst = (ago // 9) % 3 != 1
        share = 1 - ago / 240
        made.append(
            replace(
                last,
                taken_s=last.taken_s - ago,
                prompt_tokens_computed=int(last.prompt_tokens_computed * share),
                prompt_s=last.prompt_s * share * wave / 1.35 if not burst else last.prompt_s * share,
                generated_tokens=int(last.generated_tokens * share),
                decode_tokens=int(last.decode_tokens * share),
                decode_s=last.decode_s * share if burst else last.decode_s * share / wave,
                bytes_read=None if last.bytes_read is None else int(last.bytes_read - 30e9 * ago),
                machine=None if machine is None else replace(machine, cpu_s=machine.cpu_s - 1.7 * ago),
            )
        )
    return [*made, last]
