"""The routes llama-server's clients know, in its shapes: `/slots`, `/props`, `/tokenize`, `/detokenize`,
`/apply-template`."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec

import phobos
from phobos.chat.messages import GenerationRequest
from phobos.counters import Snapshot
from phobos.errors import RequestError
from phobos.http.protocols.conversation import parse_messages, split_template_kwargs
from phobos.http.protocols.fields import convert, decode_object
from phobos.http.protocols.history import LeftOut
from phobos.http.protocols.tools import CHAT, read_tools
from phobos.http.served import ServedModel, ServedTokenizer, SlotActions
from phobos.sampling_fields import FIELDS, resolve


class TokenizeFields(msgspec.Struct):
    """`POST /tokenize`."""

    content: str | None = None
    prompt: str | None = None  # vLLM's names
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeFields(msgspec.Struct):
    """`POST /detokenize`."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0)]]


class TemplateFields(msgspec.Struct):
    """`POST /apply-template`."""

    messages: Any
    tools: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None


def _present(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def tokenize(body: dict[str, Any], model: ServedModel) -> dict[str, Any]:
    """Text to ids; with `with_pieces` each id with its text, or its bytes where they are no text."""
    asked = convert(_present(body), TokenizeFields)
    special = asked.parse_special is not False
    text = asked.content if asked.content is not None else asked.prompt
    if text is None:
        raise RequestError("content is required", param="content")
    bos = asked.add_special if asked.content is not None else asked.add_special_tokens is not False
    ids = model.tokenizer.encode(text, special=special, bos=bool(bos))
    if asked.content is None:
        return {"tokens": ids, "count": len(ids), "max_model_len": model.n_ctx}
    if not asked.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": _shown_piece(model.tokenizer.piece(token))} for token in ids]}


def _shown_piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def detokenize(body: dict[str, Any], model: ServedModel) -> dict[str, Any]:
    """Ids to text."""
    asked = convert(_present(body), DetokenizeFields)
    if any(token >= model.tokenizer.n_vocab for token in asked.tokens):
        raise RequestError(f"tokens holds an id beyond the vocabulary of {model.tokenizer.n_vocab}", param="tokens")
    return {"content": model.tokenizer.decode(asked.tokens, special=True)}


def apply_template(body: dict[str, Any], model: ServedModel) -> dict[str, Any]:
    """The prompt a conversation becomes, as the model will read it."""
    asked = convert(_present(body), TemplateFields)
    kwargs, thinking = split_template_kwargs(asked.chat_template_kwargs)
    if thinking is None:
        thinking = asked.enable_thinking
    request = GenerationRequest(
        request_id="",  # it is never run
        messages=parse_messages(asked.messages, LeftOut()),
        tools=read_tools(asked.tools, CHAT).tools,
        thinking=thinking is True,
        template_kwargs=kwargs,
    )
    prepared = model.prepare(request, any_length=True)
    return {"prompt": model.tokenizer.decode(prepared.tokens, special=True)}


def describe_slots(model: ServedModel, snapshot: Snapshot) -> list[dict[str, Any]]:
    """What each slot holds and does; no text of any conversation."""
    running = {info.slot: info for info in snapshot.live if info.slot is not None and info.phase != "done"}
    rows = []
    for index in range(model.n_slots):
        slot = next((slot for slot in snapshot.slots if slot.index == index), None)
        info = running.get(index)
        rows.append(
            {
                "id": index,
                "n_ctx": model.n_ctx,
                "n_tokens": slot.n_tokens if slot is not None else 0,
                "is_processing": info is not None or (slot is not None and slot.busy),
                "id_task": info.request_id if info is not None else None,
                "phase": info.phase if info is not None else "idle",
                "n_prompt_tokens": info.n_prompt if info is not None else 0,
                "n_prompt_tokens_processed": info.n_prompt_done if info is not None else 0,
                "n_prompt_tokens_cache": info.n_cached if info is not None else 0,
                "n_decoded": info.n_generated if info is not None else 0,
            }
        )
    return rows


class SlotFields(msgspec.Struct):
    """`POST /slots/{id}?action=save` and `restore`."""

    filename: str = ""


def act_on_slot(actions: SlotActions, slot_id: str, query: str, body: bytes) -> dict[str, Any]:
    """`POST /slots/{id}?action=save|restore|erase`: blocks until it is done."""
    if not (slot_id.isascii() and slot_id.isdigit() and len(slot_id) < 10):
        raise RequestError("the slot in the path must be a number", param="id_slot")
    slot = int(slot_id)
    action = parse_qs(query).get("action", [""])[-1]
    if action == "erase":
        return {"id_slot": slot, "n_erased": actions.erase(slot).n_tokens}
    if action not in ("save", "restore"):
        raise RequestError("action must be save, restore or erase, as in ?action=save", param="action")
    filename = convert(_present(decode_object(body)), SlotFields).filename
    if not filename:
        raise RequestError(f"filename is missing: name the file to {action}", param="filename")
    if action == "save":
        saved = actions.save(slot, filename)
        return {
            "id_slot": slot,
            "filename": filename,
            "n_saved": saved.n_tokens,
            "n_written": saved.n_bytes,
            "timings": {"save_ms": round(1000 * saved.seconds, 3)},
        }
    restored = actions.restore(slot, filename)
    return {
        "id_slot": slot,
        "filename": filename,
        "n_restored": restored.n_tokens,
        "n_read": restored.n_bytes,
        "timings": {"restore_ms": round(1000 * restored.seconds, 3)},
    }


def describe_props(model: ServedModel, name: str) -> dict[str, Any]:
    """The server's properties; the file's name, never its path."""
    defaults = resolve(model.settings.sampling, model.sampling)
    tokenizer = model.tokenizer
    return {
        "default_generation_settings": {
            "n_ctx": model.n_ctx,
            "params": {
                **{field.llama_name: defaults[field.name] for field in FIELDS},
                "max_tokens": model.settings.sampling.max_tokens,
            },
        },
        "total_slots": model.n_slots,
        "model_alias": name,
        "model_path": model.settings.model_path.name,
        "chat_template": model.template.source if model.template is not None else "",
        "bos_token": _special_text(tokenizer, tokenizer.bos_id),
        "eos_token": _special_text(tokenizer, tokenizer.eos_id),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"phobos-{phobos.__version__}",
        "is_sleeping": False,
        "x_phobos": {"dialect": model.info.dialect},
    }


def describe_tokenizer(model: ServedModel) -> dict[str, Any]:
    """What evaluation tools ask of a tokenizer, in vLLM's shape."""
    props = describe_props(model, "")
    return {
        "tokenizer_class": "GGUF",
        "bos_token": props["bos_token"],
        "eos_token": props["eos_token"],
        "pad_token": props["eos_token"],
        "chat_template": props["chat_template"],
        "model_max_length": model.n_ctx,
        "vocab_size": model.tokenizer.n_vocab,
    }


def _special_text(tokenizer: ServedTokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.decode([token], special=True)
