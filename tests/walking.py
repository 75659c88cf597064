"""Random walks through a grammar: a model without sense, for tests of what binds an answer.

`MarkerVocabulary` has every byte, some longer texts, and a dialect's markers as control tokens. `walk` chooses tokens
at random among those that may follow, as the engine would, with a liking for those that end something.
"""

from __future__ import annotations

import codecs
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jsonschema

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.scanner import Consumed, Content, Scanner
from phobos.chat.messages import GenerationRequest, ToolSpec
from phobos.chat.schemas import to_json_schema
from phobos.engine.constrained.binding import Binding
from phobos.engine.constrained.grammar import Grammars, offered_tools
from reading import Answer, fold

TEXTS = ("the", '":', '"}', "}}", ", ", ": ", "<tool_call>", "</tool_call>", "</", "\n```", "</think>", "<think>")
ENDINGS = (
    '"',
    "}",
    "]",
    "<",
    "\n",
    '"}',
    "}}",
    "</",
    "</parameter>",
    "</arg_value>",
    "</param>",
    "]]></param>",
    "</｜DSML｜parameter>",
    '<|"|>',
    "<|close|>argument<|sep|>",
    "</atem:parameter>",
    *(f"]<]minimax[>[</{name}>" for name in ("q", "city", "short", "y", "item")),
)


class MarkerVocabulary:
    """See the module."""

    bos_id = None

    def __init__(
        self, dialect: Dialect, texts: Iterable[str] = TEXTS, ends: Sequence[str] = ("<EOS>", "<EOT>")
    ) -> None:
        markers = [text for text in dialect.marker_text.split("\n") if re.fullmatch(r"<[|｜].*>|\[[A-Z_]+\]", text)]
        markers = sorted({m for marker in markers for m in re.findall(r"<[|｜][^<>]*>|\[[A-Z_]+\]", marker)})
        ordinary = [text.encode() for text in dict.fromkeys((*texts, *ENDINGS)) if len(text) > 1]
        self._pieces = [bytes([i]) for i in range(256)] + ordinary
        n = len(self._pieces)
        self._pieces += [text.encode() for text in (*ends, *markers, "<|unused|>")]
        self.end_ids = frozenset(range(n, n + len(ends)))
        self.control_ids = frozenset(range(n, len(self._pieces)))
        self.n_vocab = len(self._pieces)
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._long = sorted((p for p in self._pieces if len(p) > 1), key=len, reverse=True)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            piece = next((p for p in self._long if data.startswith(p, at)), data[at : at + 1])
            ids.append(self._ids[piece])
            at += len(piece)
        return ids

    def piece(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def spelling(self, token_id: int) -> str:
        return self._pieces[token_id].decode("utf-8", "replace")


@dataclass(frozen=True)
class Walk:
    """What came of a walk: the text, the tokens, and the answer; `is_whole` unless it was stopped."""

    text: str
    tokens: tuple[int, ...]
    answer: Answer
    is_whole: bool
    free: tuple[bool, ...]  # for each token, whether any might follow


def allowed(mask: Sequence[int], n_vocab: int) -> list[int]:
    """The tokens of a mask."""
    return [i for i in range(n_vocab) if int(mask[i >> 5]) >> (i & 31) & 1]


def walk(
    grammars: Grammars,
    request: GenerationRequest,
    seed: int,
    *,
    script: Sequence[int] = (),
    in_reasoning: bool = False,
    limit: int = 4000,
    loved: str = "",
) -> Walk:
    """Walk until the answer ends. `script` are tokens chosen first, as far as they may follow; tokens of the characters
    `loved` alone are chosen wherever they may be."""
    words = grammars.vocabulary
    rng = random.Random(seed)
    scanner = Scanner(grammars.dialect, offered_tools(request), in_reasoning=in_reasoning, shown_ids=grammars.shown_ids)
    binding = Binding(grammars, grammars.plan(request), scanner, thinking_budget=request.thinking_budget)
    binding.allow(limit)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    endings = {i for i in range(words.n_vocab) if words.piece(i).decode("utf-8", "replace") in ENDINGS}
    pieces: list[Content | Consumed] = []
    tokens, text, free = [], "", []
    while len(tokens) < limit:
        binding.prepare()
        mask = binding.mask()
        free.append(mask is None)
        choices = list(range(128)) + sorted(words.end_ids) if mask is None else allowed(mask, words.n_vocab)
        assert choices, f"nothing may follow {text!r}"
        if len(tokens) < len(script):
            assert mask is None or script[len(tokens)] in choices, (text, words.piece(script[len(tokens)]))
            token = script[len(tokens)]
        else:
            liked = [i for i in choices if i in endings]
            held = [i for i in choices if loved and not words.piece(i).decode("utf-8", "replace").strip(loved)]
            token = rng.choice(held or (liked if liked and rng.random() < 0.3 else choices))
        token = binding.extend(token) if len(tokens) >= len(script) else token
        binding.accept(token)
        tokens.append(token)
        if token in words.end_ids:
            break
        is_free = mask is None or scanner.in_reasoning
        assert is_free or token not in words.control_ids or token in grammars.shown_ids, words.piece(token)
        piece = "" if token in words.control_ids - grammars.shown_ids else decoder.decode(words.piece(token))
        text += piece
        pieces += scanner.push(piece)
    is_whole = bool(tokens) and tokens[-1] in words.end_ids
    pieces += scanner.flush()
    return Walk(text, tuple(tokens), fold(pieces), is_whole, tuple(free))


def check_calls(answer: Answer, tools: Iterable[ToolSpec]) -> None:
    """Every call is one of a tool that there is, with arguments that fit its schema."""
    by_name = {tool.name: tool for tool in tools}
    for name, arguments in answer.calls:
        jsonschema.validate(json.loads(arguments), to_json_schema(by_name[name].parameters))
