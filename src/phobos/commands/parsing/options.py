"""The flags commands share, in groups, and how they become settings.

The names are llama-server's wherever the feature is the same. A group is a list of decorators for
`flags.with_flags`; the `read_*` functions turn the values Click hands a command into frozen settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phobos import library
from phobos.chat.template_sources import NAMED_TEMPLATES, read_template
from phobos.commands.parsing.candidates import complete_model
from phobos.commands.parsing.flags import AUTO, Layers, SamplingValue, Size, flag, read_config
from phobos.errors import UsageError
from phobos.sampling_fields import FIELDS, LENGTH
from phobos.settings import EngineSettings, SamplingDefaults, ServeSettings

MODEL, SAMPLING, ANSWER = "Model", "Sampling", "One answer"
SERVER, LIMITS, DISPLAY, GENERAL = "Serving", "Serving: limits", "Dashboard", "General"
MODEL_DEFAULTS = "the model's own"
_POSITIVE, _COUNT = click.IntRange(min=1), click.IntRange(min=0)
_SECONDS = click.FloatRange(min=0)
CACHE_TYPES = click.Choice(["f16", "q8_0"])

GENERAL_FLAGS = [
    flag("--config", group=GENERAL, type=click.Path(path_type=Path), is_eager=True, expose_value=False,
         callback=read_config, metavar="FILE", help="Read flags from a TOML file (ctx-size = 4096)."),
    flag("--log", group=GENERAL, type=click.Choice(["off", "info", "debug", "trace"]), without="info",
         help="Log level on standard error."),
    flag("--debug", group=GENERAL, is_flag=True, help="Show a traceback for errors."),
]  # fmt: skip

JSON_FLAG = [flag("--json", "as_json", group=GENERAL, is_flag=True, help="Print one JSON object.")]

GGUF_FLAG = [
    flag("--gguf", "--model", "-m", "gguf", group=MODEL, env="PHOBOS_MODEL", metavar="MODEL",
         without="the default model", help="A GGUF file, a catalog name or hf:owner/repo[:QUANT|/file].",
         shell_complete=complete_model),
]  # fmt: skip

CACHE_FLAGS = [
    flag("--cache-type-k", "-ctk", group=MODEL, type=CACHE_TYPES, default="f16",
         help="Format of cached keys; q8_0 takes half the memory."),
    flag("--cache-type-v", "-ctv", group=MODEL, type=CACHE_TYPES, default="f16",
         help="Format of cached values; q8_0 takes half the memory."),
]  # fmt: skip

ENGINE_FLAGS = [
    flag("--ctx-size", "-c", group=MODEL, type=_COUNT, metavar="N",
         without="the model's own, less where memory is short", help="Context size in tokens; 0 lets Phobos choose."),
    flag("--threads", "-t", group=MODEL, type=_POSITIVE, without="one a core", metavar="N",
         help="Compute threads."),
    flag("--parallel", "-np", "--kv-slots", "parallel", group=MODEL, type=_POSITIVE, metavar="N",
         without="4, less where memory is short", help="Slots: conversations that can run at once."),
    flag("--batch-size", "-b", "--ubatch-size", "-ub", "batch_size", group=MODEL, type=click.IntRange(1, 8192),
         default=512, metavar="N", help="Prompt tokens processed in one pass."),
    *CACHE_FLAGS,
    flag("--cache-memory", group=MODEL, type=Size(), metavar="SIZE",
         without="half of the memory left beside the weights",
         help="Memory for the KV cache of all conversations; idle ones are evicted."),
    flag("--cache-ram", "-cram", group=MODEL, type=Size(), metavar="SIZE",
         without="a quarter of the rest, at most 4G",
         help="Memory for evicted conversations, so that they can be restored; 0 for none."),
    flag("--prefix-cache/--no-prefix-cache", group=MODEL, default=True,
         help="Reuse the KV cache of a shared prefix, or start every request from scratch."),
    flag("--lookup/--no-lookup", group=MODEL, default=True,
         help="Speculative decoding from earlier text (prompt lookup); answers stay the same."),
    flag("--draft", "--model-draft", "-md", "draft", group=MODEL, metavar="MODEL", without="no draft model",
         help="Speculative decoding with a small draft model of the same family; answers stay the same."),
    flag("--chat-template", group=MODEL, without=MODEL_DEFAULTS, metavar="FILE",
         help=f"The chat template to use: a file of Jinja, or one of {', '.join(sorted(NAMED_TEMPLATES))}."),
    flag("--bare-calls/--no-bare-calls", group=MODEL, default=True,
         help="Read an answer that is nothing but JSON with an offered tool's name and arguments as a call of it."),
    flag("--backend", group=MODEL, type=click.Choice(["cpu", "reference"]), default="cpu",
         help="Compiled kernels, or plain NumPy (slow, for comparison)."),
    flag("--device", group=MODEL, default="auto", metavar="NAME",
         help="Where compiled code runs: cpu, cuda, cuda:N (card number N), cuda:N,M (its layers parted among these "
              "cards), or auto for a card where one can be used."),
    flag("--gpu-layers", "--n-gpu-layers", "-ngl", "gpu_layers", group=MODEL, type=Layers(), metavar="N",
         without="auto: as many as fit",
         help="How many layers, the last ones, lie on cards; the CPU computes the others."),
]  # fmt: skip
MODEL_FLAGS = [*GGUF_FLAG, *ENGINE_FLAGS]

SAMPLING_FLAGS = [
    flag(*field.flags, field.flag_name.replace("-", "_"), group=SAMPLING, type=SamplingValue(field),
         without=field.describe_default(), metavar="N" if field.whole else "X", help=field.summary)
    for field in (LENGTH, *FIELDS)
]  # fmt: skip

ANSWER_FLAGS = [
    flag("--file", "-f", group=ANSWER, type=click.Path(path_type=Path), metavar="FILE",
         help="Read the prompt from a file."),
    flag("--system", "-sys", "system", group=ANSWER, metavar="TEXT", help="System prompt."),
    flag("--raw", group=ANSWER, is_flag=True, help="Continue the text as typed, without the model's chat format."),
    flag("--think/--no-think", group=ANSWER, default=False,
         help="Let the model reason first (shown on standard error); a server does in every chat that does not say."),
    flag("--show", group=ANSWER, type=click.IntRange(1, 32), metavar="K", help="Show the K most likely first tokens."),
    flag("--schema", "--json-schema-file", "schema", group=ANSWER, type=click.Path(path_type=Path), metavar="FILE",
         help="Answer with JSON that fits this JSON schema."),
    flag("--stop", "--reverse-prompt", "-r", "stop", group=ANSWER, multiple=True, metavar="TEXT",
         help="End the answer before this text; may be repeated."),
    flag("--json", "as_json", group=ANSWER, is_flag=True, help="Print the whole reply as one JSON object."),
]  # fmt: skip

SERVE_FLAGS = [
    flag("--listen", group=SERVER, metavar="ADDRESS", without="do not serve",
         help="Serve on host:port, [::1]:port, :port or unix:/path; port 0 picks one."),
    flag("--serve", group=SERVER, is_flag=True, hidden=True, help="Serve, on 127.0.0.1:8080 unless told otherwise."),
    flag("--detach", group=SERVER, is_flag=True, help="Serve in the background and return once it listens."),
    flag("--host", group=SERVER, metavar="HOST", without="127.0.0.1", help="Serve on this host."),
    flag("--port", group=SERVER, type=click.IntRange(0, 65535), without="8080", metavar="PORT",
         help="Serve on this port."),
    flag("--alias", "--model-id", "-a", "alias", group=SERVER, metavar="NAME", without="GGUF, ARCHITECTURE",
         help="The model's name for clients."),
    flag("--strict-model", group=SERVER, is_flag=True, help="Refuse requests that name another model."),
    flag("--strict-fields", group=SERVER, is_flag=True, help="Refuse requests with fields Phobos does not know."),
    flag("--api-key-file", group=SERVER, type=click.Path(path_type=Path), metavar="FILE",
         help="Require one of the API keys in this file: one per line, KEY or NAME:KEY."),
    flag("--api-key", group=SERVER, multiple=True, metavar="[NAME:]KEY",
         help="Require this API key; may be repeated. Other users see it in the process list."),
    flag("--insecure", group=SERVER, is_flag=True, help="Allow serving on a public address without a key."),
    flag("--allowed-host", group=SERVER, multiple=True, metavar="NAME",
         help="A further Host name to accept; * for all."),
    flag("--cors-origin", group=SERVER, multiple=True, metavar="ORIGIN", without="local pages",
         help="Allowed browser origins: X replaces the default, +X adds to it, * allows all."),
    flag("--slot-save-path", group=SERVER, type=click.Path(path_type=Path), metavar="FOLDER",
         help="Keep conversations in this folder, so that they go on after a restart."),
    flag("--prefill-thinking", group=SERVER, metavar="TEXT", help="Start every answer's reasoning with this text."),
    flag("--continue-assistant/--no-continue-assistant", group=SERVER, default=True,
         help="Continue a trailing assistant message, or start a new turn."),
    flag("--metrics", group=SERVER, is_flag=True, help="Accepted as llama-server's; /metrics always answers."),
    flag("--metrics-llamacpp", group=SERVER, is_flag=True, help="Give metrics under llama-server's names too."),
]  # fmt: skip

LIMIT_FLAGS = [
    flag("--max-queue", group=LIMITS, type=_COUNT, default=512, metavar="N", help="Longest queue of waiting requests."),
    flag("--queue-timeout", group=LIMITS, type=_SECONDS, default=300.0, metavar="S",
         help="Longest time in the queue, seconds."),
    flag("--request-timeout", group=LIMITS, type=_SECONDS, default=30.0, metavar="S",
         help="Time limit for receiving a request, seconds."),
    flag("--keep-alive", group=LIMITS, type=_SECONDS, default=75.0, metavar="S",
         help="Keep-alive timeout of idle connections, seconds."),
    flag("--write-timeout", group=LIMITS, type=_SECONDS, default=60.0, metavar="S",
         help="Write timeout for a client that does not read, seconds."),
    flag("--heartbeat", group=LIMITS, type=_SECONDS, default=5.0, metavar="S",
         help="Keep-alive interval for idle streams, seconds."),
    flag("--max-body", group=LIMITS, type=Size(), default=4 << 20, without="4M", metavar="SIZE",
         help="Largest request body."),
    flag("--max-connections", group=LIMITS, type=_POSITIVE, default=512, metavar="N", help="Connections at once."),
    flag("--max-connections-per-address", group=LIMITS, type=_POSITIVE, metavar="N", without="no bound",
         help="Connections at once from one address of another machine."),
    flag("--drain", group=LIMITS, type=_SECONDS, default=5.0, metavar="S",
         help="Grace period for running requests at shutdown, seconds."),
]  # fmt: skip

DISPLAY_FLAGS = [
    flag("--tui/--no-tui", group=DISPLAY, default=None, without="where it can be drawn",
         help="Draw the dashboard, or write log lines instead."),
    flag("--animation/--no-animation", group=DISPLAY, default=True, help="Open the dashboard with its animation."),
    flag("--theme", group=DISPLAY, type=click.Choice(["dark", "light"]), without="as the terminal says, else dark",
         help="Colours of the dashboard."),
]  # fmt: skip


def read_sampling(values: dict[str, Any]) -> SamplingDefaults:
    """The sampling flags; what was not given stays `None`."""
    given = {field.name: values[field.flag_name.replace("-", "_")] for field in (*FIELDS, LENGTH)}
    return SamplingDefaults(**given | {"max_tokens": None if given["max_tokens"] == -1 else given["max_tokens"]})


def read_engine(values: dict[str, Any], model_path: Path) -> EngineSettings:
    """The model flags, and the sampling flags where the command has them."""
    return EngineSettings(
        model_path=model_path,
        backend=values["backend"],
        device=values["device"],
        gpu_layers=None if values["gpu_layers"] == AUTO else values["gpu_layers"],
        n_threads=values["threads"],
        n_ctx=values["ctx_size"] or None,
        n_slots=values["parallel"],
        chunk_rows=values["batch_size"],
        cache_type_k=values["cache_type_k"],
        cache_type_v=values["cache_type_v"],
        prefix_cache=values["prefix_cache"],
        lookup=values["lookup"],
        draft_path=None if values["draft"] is None else library.resolve_model(values["draft"]),
        cache_bytes=values["cache_memory"],
        archive_bytes=values["cache_ram"],
        slot_save_path=values.get("slot_save_path"),
        chat_template=None if values["chat_template"] is None else read_template(values["chat_template"]),
        bare_calls=values["bare_calls"],
        sampling=read_sampling(values) if "temp" in values else SamplingDefaults(),
    )


def read_listen(values: dict[str, Any]) -> str | None:
    """The address to serve on, from `--listen` or llama-server's `--host` and `--port`; nothing: do not serve."""
    listen, host, port = values["listen"], values["host"], values["port"]
    if listen is not None and (host is not None or port is not None):
        raise UsageError("--listen and --host or --port mean the same: give one of them")
    if listen is not None:
        return str(listen)
    if host is None and port is None:
        return None
    shown = f"[{host}]" if host and ":" in host and not host.startswith("[") else host or "127.0.0.1"
    return f"{shown}:{8080 if port is None else port}"


def read_serve(values: dict[str, Any], listen: str) -> ServeSettings:
    """The serving flags."""
    return ServeSettings(
        listen=listen,
        model_id=values["alias"],
        api_keys=_read_keys(values),
        insecure=values["insecure"],
        allowed_hosts=tuple(values["allowed_host"]),
        cors_origins=tuple(values["cors_origin"]),
        max_body_bytes=values["max_body"],
        max_connections=values["max_connections"],
        max_connections_per_address=values["max_connections_per_address"],
        max_queue=values["max_queue"],
        queue_timeout_s=values["queue_timeout"],
        request_timeout_s=values["request_timeout"],
        keep_alive_s=values["keep_alive"],
        write_timeout_s=values["write_timeout"],
        heartbeat_s=values["heartbeat"],
        drain_s=values["drain"],
        strict_model=values["strict_model"],
        strict_fields=values["strict_fields"],
        think=values["think"],
        prefill_thinking=values["prefill_thinking"],
        continue_assistant=values["continue_assistant"],
        metrics_llamacpp=values["metrics_llamacpp"],
    )


def _read_keys(values: dict[str, Any]) -> tuple[str, ...]:
    """The keys of the flags and of the file, checked."""
    from phobos.http.transport.keys import KeyRing, read_key_file

    path = values["api_key_file"]
    keys = (*values["api_key"], *(read_key_file(path) if path is not None else ()))
    KeyRing(keys)
    return keys
