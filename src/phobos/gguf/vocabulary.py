"""The vocabulary of a GGUF file: tokens, their types and the ids with a role, read once and checked.

Nothing here splits text; `tokenizer.py` does that. Every defect of the metadata is one `FileError`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from phobos.errors import FileError

log = logging.getLogger(__name__)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
PREFIX = "tokenizer.ggml."

# Spellings of tokens that end a turn. Files often name only one of theirs in the metadata.
_END_WORDS = """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[ <|role_end|>
    <｜end▁of▁sentence｜> <|END_OF_TURN_TOKEN|>
"""
END_SPELLINGS = frozenset(_END_WORDS.split())
# Fill-in-the-middle markers after which a code model would begin another file.
_FILE_WORDS = "<|fim_pad|> <fim-pad> <fim_pad> <|fim_repo|> <|repo_name|> <fim-repo> <reponame> <|file_sep|>"
_FILE_SPELLINGS = frozenset(_FILE_WORDS.split())
# Families whose <|end|> only closes one message of a turn: the turn goes on until one of these.
_TURN_ENDS = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in id order and what the file says of them.

    `model` is `tokenizer.ggml.model`; `pre` names the pre-split ("" where missing); `scores` and `merges` are empty
    where the kind of tokenizer has none; an id is `None` where the file has no such token; a flag is `None` where the
    file is silent.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    padding_id: int | None
    end_ids: frozenset[int]
    infill_ids: tuple[int, int, int] | None  # prefix, suffix, middle
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool | None
    remove_extra_whitespaces: bool
    normalization: tuple[str, ...]  # "NFC", "NFKC", …
    charsmap: bytes  # SentencePiece's compiled normalization rules
    strips_after_control: bool  # white space right after a control token belongs to it
    ids: dict[str, int] = field(repr=False, default_factory=dict)

    def ids_of_type(self, *types: int) -> list[int]:
        """Ids of all tokens of these types, in order."""
        wanted = frozenset(types)
        if wanted.isdisjoint(self.types):
            return []
        return [i for i, kind in enumerate(self.types) if kind in wanted]


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Read the `tokenizer.ggml.*` keys. Raises `FileError` where they are missing, of a wrong type or disagree."""
    model = _get(metadata, "model", str)
    if model is None:
        raise FileError(f"the model file lacks {PREFIX}model: it holds no tokenizer, fetch a complete version")
    tokens = _get(metadata, "tokens", list) or []
    if not tokens or not isinstance(tokens[0], str):
        raise FileError(f"the model file lacks {PREFIX}tokens: it holds no vocabulary, fetch a complete version")
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)] if "" in tokens else tokens
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        others = f" and {n} others" if (n := len(tokens) - len(ids) - 1) else ""
        log.warning("the vocabulary holds the token %r twice%s: the last of each spelling is used", twice, others)
    types = _list(metadata, "token_type", len(tokens), int) or [NORMAL] * len(tokens)
    roles = {name: _id(metadata, f"{name}_token_id", len(tokens)) for name in _ROLES}
    if model == "llama":  # the format's defaults, for files that predate the keys
        for role, default in (("bos", 1), ("eos", 2), ("unknown", 0)):
            if f"{PREFIX}{role}_token_id" not in metadata and default < len(tokens):
                roles[role] = default
    return Vocabulary(
        model=model,
        pre=_get(metadata, "pre", str) or "",
        tokens=tokens,
        types=types,
        scores=_list(metadata, "scores", len(tokens), float),
        merges=_get(metadata, "merges", list) or [],
        bos_id=roles["bos"],
        eos_id=roles["eos"],
        unknown_id=roles["unknown"],
        padding_id=roles["padding"],
        end_ids=_end_ids(ids, types, [roles[name] for name in ("eos", "eot", "eom")]),
        infill_ids=_infill_ids(ids, types, roles),
        add_bos=_get(metadata, "add_bos_token", bool),
        add_eos=bool(_get(metadata, "add_eos_token", bool)),
        add_space_prefix=_get(metadata, "add_space_prefix", bool),
        remove_extra_whitespaces=bool(_get(metadata, "remove_extra_whitespaces", bool)),
        normalization=tuple(
            form for form in ("NFD", "NFKD", "NFC", "NFKC") if _get(metadata, f"normalizer.{form.lower()}", bool)
        ),
        charsmap=bytes(item & 255 for item in _get(metadata, "precompiled_charsmap", list) or []),
        strips_after_control=model == "llama" and _is_phi3(metadata),
        ids=ids,
    )


_ROLES = (
    "bos", "eos", "eot", "eom", "unknown", "padding",
    "fim_pre", "fim_suf", "fim_mid", "prefix", "suffix", "middle",
)  # fmt: skip
_INFILL_SPELLINGS = (
    ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>"),
    ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>"),
    ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>"),
)


def _is_phi3(metadata: Mapping[str, Any]) -> bool:
    """Phi-3's added tokens were trained to swallow the white space after them, which no metadata key says."""
    name = str(metadata.get("general.name", "")).lower()
    return metadata.get("general.architecture") == "phi3" or "phi-3" in name or "phi3" in name


def _infill_ids(ids: dict[str, int], types: list[int], roles: dict[str, int | None]) -> tuple[int, int, int] | None:
    found: list[int] = []
    names = (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle"))
    for keys, spellings in zip(names, _INFILL_SPELLINGS, strict=True):
        named = next((roles[key] for key in keys if roles[key] is not None), None)
        spelled = next((ids[text] for text in spellings if text in ids and types[ids[text]] != NORMAL), None)
        chosen = named if named is not None else spelled
        if chosen is None:
            return None
        found.append(chosen)
    return found[0], found[1], found[2]


def _end_ids(ids: dict[str, int], types: list[int], named: list[int | None]) -> frozenset[int]:
    ends = {i for i in named if i is not None}
    spelled = {text for text in END_SPELLINGS | _FILE_SPELLINGS if text in ids and types[ids[text]] == CONTROL}
    for group in _TURN_ENDS:
        if group <= spelled:
            ends.discard(ids.get("<|end|>", -1))
            spelled.discard("<|end|>")
    return frozenset(ends | {ids[text] for text in spelled})


def _get(metadata: Mapping[str, Any], key: str, kind: type) -> Any:
    """The value of a `tokenizer.ggml.` key, or None. Raises `FileError` where its type is another."""
    if PREFIX + key not in metadata:
        return None
    value = metadata[PREFIX + key]
    if not isinstance(value, kind):
        _refuse_type(key, kind)
    return value


def _refuse_type(key: str, kind: type) -> NoReturn:
    words = {str: "text", list: "a list", bool: "true or false", int: "a list of numbers", float: "a list of numbers"}
    raise FileError(f"the value of {PREFIX}{key} is not {words[kind]}: fetch a sound conversion of the model")


def _list(metadata: Mapping[str, Any], key: str, n_tokens: int, kind: type) -> list[Any]:
    value = _get(metadata, key, list)
    if value is None:
        return []
    if len(value) < n_tokens:
        raise FileError(
            f"{PREFIX}{key} has {len(value)} entries for {n_tokens} tokens: fetch a sound conversion of the model"
        )
    if value and not isinstance(value[0], int | float):
        _refuse_type(key, kind)
    return list(value[:n_tokens])


def _id(metadata: Mapping[str, Any], key: str, n_tokens: int) -> int | None:
    value = metadata.get(PREFIX + key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise FileError(f"the value of {PREFIX}{key} is not a whole number: fetch a sound conversion of the model")
    if not 0 <= value < n_tokens:
        if 0 <= value < 1 << 31:  # -1 and 2^32 - 1 mean "none"
            log.warning("%s%s is %d, outside the vocabulary of %d tokens: ignored", PREFIX, key, value, n_tokens)
        return None
    return value
