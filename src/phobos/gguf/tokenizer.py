"""Text to tokens and back, from the vocabulary inside a GGUF file.

Rules. Control tokens are recognised in a text only where the caller says so (`special=True`, or a run marked as
control); user-defined tokens always, as their vocabulary means them to be. `decode(encode(text))` is the text, but for
vocabularies that normalise. BPE is merged by `tokenizers` and SentencePiece by `sentencepiece`; both are imported when
a model is loaded, not before. A `Tokenizer` is immutable from outside and may be used by several threads.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from phobos.errors import FileError, RequestError, UnsupportedModelError
from phobos.gguf.pretokenizers import DEFAULT, PreTokenizer, find_pretokenizer
from phobos.gguf.sentencepiece_model import BPE, UNIGRAM, build_model
from phobos.gguf.spellings import SpellingFinder
from phobos.gguf.stream_decoder import StreamDecoder
from phobos.gguf.vocabulary import BYTE, CONTROL, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary, read_vocabulary
from phobos.host.machine import release_free_memory

log = logging.getLogger(__name__)

_BLANK = "\u2581"  # SentencePiece's visible blank
_STRIPPED = " \t\n\v\f\r"
_NOTHING: frozenset[str] = frozenset()
_NOTHING_SHOWN: frozenset[int] = frozenset()


class MetadataFile(Protocol):
    """What this module needs of an open GGUF file."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...


LONG_CHARS = 1 << 17  # of a text after which the memory that encoding took is given back
PIECE_CHARS = 1 << 16
MOST_COMPOSED = 4  # characters that normalization may make one of


class Codec(Protocol):
    """One way of merging plain text into tokens."""

    adds_blank: bool  # a text that follows nothing or a control token gets a blank before it
    drops_blank: bool  # of a whole text, the first blank was added

    def encode(self, text: str, spelled_out: frozenset[str]) -> list[int]:
        """Tokens of a plain text; user-defined tokens in `spelled_out` are not recognised in it."""

    def piece(self, token_id: int) -> bytes:
        """The bytes a token stands for."""

    @property
    def knows_all_bytes(self) -> bool:
        """Whether any text is made of its tokens, none of it unknown."""


class Tokenizer:
    """See the module. Ids are positions in the vocabulary, `0 <= id < n_vocab`.

    `end_ids` are all tokens that end a turn; `control_ids` those that have no text of their own; `infill_ids` the
    prefix, suffix and middle markers, or None. `ending`: what the file says stands behind a text that is no prompt.
    """

    def __init__(self, vocabulary: Vocabulary, codec: Codec, *, add_bos: bool) -> None:
        self._vocabulary = vocabulary
        self._codec = codec
        self.n_vocab = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.unknown_id = vocabulary.unknown_id
        self.padding_id = vocabulary.padding_id
        self.end_ids = vocabulary.end_ids
        self.infill_ids = vocabulary.infill_ids
        self.add_bos = add_bos and vocabulary.bos_id is not None
        self.ending = (vocabulary.eos_id,) if vocabulary.add_eos and vocabulary.eos_id is not None else ()
        named = (vocabulary.bos_id, vocabulary.eos_id)
        self.control_ids = frozenset(vocabulary.ids_of_type(CONTROL, UNKNOWN)).union(
            vocabulary.end_ids, (i for i in named if i is not None)
        )
        self.control_spellings = frozenset(vocabulary.tokens[i] for i in self.control_ids)
        self.user_defined_spellings = frozenset(
            vocabulary.tokens[i] for i in vocabulary.ids_of_type(USER_DEFINED) if i not in self.control_ids
        )
        self._control_finder = SpellingFinder(self.control_spellings)
        # No token stands for more characters than the longest has bytes; unknown ones may all become one token.
        self._longest = 0
        if codec.knows_all_bytes:
            self._longest = max(len(text.encode("utf-8", "surrogateescape")) for text in vocabulary.tokens)
            self._longest *= MOST_COMPOSED if vocabulary.normalization or vocabulary.charsmap else 1
        self._loses_blanks = vocabulary.remove_extra_whitespaces or vocabulary.strips_after_control
        strips = self.control_ids if vocabulary.strips_after_control else frozenset()
        self._stripping_ids = strips - {vocabulary.ids.get(text, -1) for text in ("<unk>", "<s>", "<|endoftext|>")}

    def least_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least, found without encoding it; 0 where nothing can be told."""
        if not self._longest:
            return 0
        n_chars = sum(map(len, text.split())) if self._loses_blanks else len(text)
        return n_chars // self._longest

    def encode(self, text: str, *, special: bool = False, bos: bool = False, continues: bool = False) -> list[int]:
        """Tokens of a text. `special`: spellings of control tokens in it become those tokens. `bos`: begin with BOS
        where the file says so, unless the text already does. `continues`: the text goes on from other tokens, so no
        blank is put before it. Raises `RequestError` for text that is not Unicode."""
        runs = self._control_finder.split(text) if special else ((text, False),)
        ids = self.encode_runs(runs, continues=continues)
        if bos and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def encode_runs(
        self,
        runs: Iterable[tuple[str, bool]],
        *,
        spelled_out: frozenset[str] = _NOTHING,
        continues: bool = False,
    ) -> list[int]:
        """Tokens of runs of text, each with whether it is one token's spelling. Each plain run is encoded whole;
        user-defined tokens in `spelled_out` are not recognised inside plain runs."""
        ids: list[int] = []
        fresh = not continues  # nothing or a control token stands before
        stripping = False
        n_chars = 0
        for text, is_token in runs:
            if is_token:
                token_id = self._vocabulary.ids[text]
                ids.append(token_id)
                fresh, stripping = True, token_id in self._stripping_ids
                continue
            plain = text.lstrip(_STRIPPED) if stripping else text
            if not plain:
                continue
            n_chars += len(plain)
            try:
                plain.encode()
            except UnicodeEncodeError:
                raise RequestError("the text has half a surrogate pair: send proper Unicode text") from None
            ids += self._codec.encode(" " + plain if fresh and self._codec.adds_blank else plain, spelled_out)
            fresh = stripping = False
        if n_chars > LONG_CHARS:
            release_free_memory()  # libraries take hundreds of bytes a character, which stay with the C library
        return ids

    def decode(self, ids: Iterable[int], *, special: bool = False, continues: bool = False) -> str:
        """The text of tokens; bytes that are no character become U+FFFD. `special` writes control tokens out.
        `continues`: the tokens go on from others, so a blank at their start is theirs. Raises `RequestError` for an
        id outside the vocabulary."""
        hidden: frozenset[int] = frozenset() if special else self.control_ids
        data = b"".join([self.piece(token_id) for token_id in ids if token_id not in hidden])
        if self._codec.drops_blank and not continues:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def stream_decoder(
        self, *, special: bool = False, continues: bool = False, shown: frozenset[int] = _NOTHING_SHOWN
    ) -> StreamDecoder:
        """A decoder for one sequence; its arguments are those of `decode`. `shown` are control tokens to write out
        where the others are not."""
        hidden: frozenset[int] = frozenset() if special else self.control_ids - shown
        return StreamDecoder(self.piece, hidden.__contains__, self._codec.drops_blank and not continues)

    def piece(self, token_id: int) -> bytes:
        """The bytes of one token; a control token's are its spelling."""
        if not 0 <= token_id < self.n_vocab:
            raise RequestError(
                f"there is no token {token_id}: ids go from 0 to {self.n_vocab - 1}", code="invalid_value"
            )
        if token_id in self.control_ids:
            return _utf8(self._vocabulary.tokens[token_id])
        return self._codec.piece(token_id)

    def token_id(self, text: str) -> int | None:
        """The id of a token by the spelling the file gives it (`<|im_end|>`), or None."""
        return self._vocabulary.ids.get(text)

    def spelling(self, token_id: int) -> str:
        """The spelling that the file gives a token."""
        return self._vocabulary.tokens[token_id]


class _BytePairs:
    """BPE by `tokenizers`. User-defined tokens are found first; what lies between goes to the library."""

    adds_blank = drops_blank = False

    def __init__(self, vocabulary: Vocabulary, pre: PreTokenizer) -> None:
        self._vocabulary = replace(vocabulary, merges=[])  # the library keeps its own
        self._is_raw = pre.is_raw
        self._tokenizer = _build_bpe(vocabulary, pre)
        self._raw_ids = frozenset(vocabulary.ids_of_type(USER_DEFINED))
        self._byte_ids = frozenset(vocabulary.ids_of_type(BYTE))
        self.knows_all_bytes = not self._is_raw or len(self._byte_ids) >= 256
        spelled = frozenset(vocabulary.tokens[i] for i in self._raw_ids)
        self._finders = {_NOTHING: SpellingFinder(spelled)}

    def encode(self, text: str, spelled_out: frozenset[str]) -> list[int]:
        finder = self._finders.get(spelled_out)
        if finder is None:
            finder = SpellingFinder(self._finders[_NOTHING].spellings - spelled_out)
            self._finders[spelled_out] = finder
        ids: list[int] = []
        for run, is_token in finder.split(text):
            if is_token:
                ids.append(self._vocabulary.ids[run])
            else:
                for piece in self._pieces(run):
                    # The "fast" form leaves out the offsets, which cost nearly as much as the tokens.
                    ids += self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)[0].ids
        return ids

    def _pieces(self, run: str) -> Iterator[str]:
        """A long run in pieces, cut where the pre-split cuts it anyway, so that little of it is worked on at once."""
        start, splitter = 0, self._tokenizer.pre_tokenizer
        while len(run) - start > PIECE_CHARS and splitter is not None and self._tokenizer.normalizer is None:
            window = run[start : start + PIECE_CHARS]
            # What stands at the window's end may be split by what comes behind it, digits and blanks by how many they
            # are.
            ends = (at for _, (at, _) in reversed(splitter.pre_tokenize_str(window)[1:-2]))
            cut = next((at for at in ends if _may_cut(window[at - 1], window[at])), None)
            if cut is None:
                break
            yield window[:cut]
            start += cut
        yield run[start:]

    def piece(self, token_id: int) -> bytes:
        text = self._vocabulary.tokens[token_id]
        if token_id in self._raw_ids:
            return _utf8(text)
        if self._is_raw:
            value = _byte_value(text) if token_id in self._byte_ids or text.startswith("<0x") else None
            return _utf8(text.replace(_BLANK, " ")) if value is None else bytes((value,))
        try:
            return bytes(map(_BYTE_OF.__getitem__, text))
        except KeyError:  # a token outside the byte alphabet stands for its own spelling
            return _utf8(text)


def _may_cut(before: str, after: str) -> bool:
    """Whether a pre-split between two characters does not depend on what lies further away."""
    return not (before.isspace() or before.isnumeric() or after.isnumeric())


class _SentencePieces:
    """SentencePiece by its own library, from a model built here. The library finds user-defined tokens itself, so a
    set of them that must not be found needs a second model; there is one such set a chat template."""

    def __init__(self, vocabulary: Vocabulary, *, model_type: int) -> None:
        self._vocabulary = vocabulary
        self._model_type = model_type
        self.knows_all_bytes = len(vocabulary.ids_of_type(BYTE)) >= 256
        self.drops_blank = vocabulary.add_space_prefix is not False
        # Where blanks are squeezed the library must add it, or it would take it for one too many.
        self.adds_blank = self.drops_blank and not vocabulary.remove_extra_whitespaces
        self._processors = {_NOTHING: self._load(_NOTHING)}
        self._lock = threading.Lock()

    def encode(self, text: str, spelled_out: frozenset[str]) -> list[int]:
        processor = self._processors.get(spelled_out)
        if processor is None:
            with self._lock:
                processor = self._processors.setdefault(spelled_out, self._load(spelled_out))
        ids: list[int] = processor.EncodeAsIds(text)
        return ids

    def piece(self, token_id: int) -> bytes:
        text = self._vocabulary.tokens[token_id]
        if self._vocabulary.types[token_id] == BYTE and (value := _byte_value(text)) is not None:
            return bytes((value,))
        return _utf8(text.replace(_BLANK, " "))

    def _load(self, spelled_out: frozenset[str]) -> Any:
        import sentencepiece

        vocabulary = self._vocabulary
        types = list(vocabulary.types)
        unknown = vocabulary.unknown_id
        if unknown is None:
            unknown = next(iter(vocabulary.ids_of_type(UNKNOWN, CONTROL)), 0)
        # The library wants one unknown piece, only bytes as byte pieces, and no piece it could produce by accident.
        for i in vocabulary.ids_of_type(UNKNOWN, UNUSED, 0):
            types[i] = CONTROL if types[i] == UNKNOWN else UNUSED
        types[unknown] = UNKNOWN
        for text in spelled_out:
            types[vocabulary.ids[text]] = CONTROL
        for i in self._shadowed():
            types[i] = UNUSED
        n_bytes = sum(_byte_value(vocabulary.tokens[i]) is not None for i in vocabulary.ids_of_type(BYTE))
        try:
            data = build_model(
                self._pieces(types),
                vocabulary.scores or [0.0] * len(types),
                types,
                model_type=self._model_type,
                byte_fallback=n_bytes == 256,
                charsmap=vocabulary.charsmap,
                add_dummy_prefix=self.drops_blank and not self.adds_blank,
                remove_extra_whitespaces=vocabulary.remove_extra_whitespaces,
            )
            return sentencepiece.SentencePieceProcessor(model_proto=data)
        except (RuntimeError, OverflowError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FileError(f"the vocabulary is not a sound SentencePiece model ({reason}): fetch it again") from error

    def _shadowed(self) -> list[int]:
        """Tokens that a later one of the same text stands for."""
        vocabulary = self._vocabulary
        if len(vocabulary.ids) == len(vocabulary.tokens):
            return []
        return [i for i, text in enumerate(vocabulary.tokens) if vocabulary.ids[text] != i]

    def _pieces(self, types: Sequence[int]) -> list[bytes]:
        """Pieces as the library spells them. User-defined ones are written with true blanks by newer converters."""
        pieces = [_utf8(text) for text in self._vocabulary.tokens]
        for i in self._shadowed():
            pieces[i] = b"[TWICE_%d]" % i  # the library refuses a piece that is there twice
        for i in self._vocabulary.ids_of_type(USER_DEFINED):
            text = self._vocabulary.tokens[i].replace(" ", _BLANK)
            if types[i] == USER_DEFINED and text not in self._vocabulary.ids:
                pieces[i] = text.encode()
        return pieces


def _build_bpe(vocabulary: Vocabulary, pre: PreTokenizer) -> Any:
    # One text at a time needs no worker threads, and the library complains when a process that has them forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Regex, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE as Merges  # noqa: N811

    try:
        "".join(vocabulary.tokens).encode()
    except UnicodeEncodeError:
        raise FileError("the vocabulary holds text that is not UTF-8: fetch a sound conversion of the model") from None
    merges = _split_merges(vocabulary.merges)
    ids = vocabulary.ids
    options: dict[str, Any] = {"ignore_merges": pre.ignore_merges, "byte_fallback": pre.is_raw}
    try:
        model = _make_merges(Merges, ids, merges, options)
        library = Library(model)
        steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
        normalize = [getattr(normalizers, form)() for form in vocabulary.normalization]
        if vocabulary.charsmap:
            normalize.append(normalizers.Precompiled(vocabulary.charsmap))
        if pre.is_raw:
            normalize.append(normalizers.Replace(" ", _BLANK))
        else:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        library.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if normalize:
            library.normalizer = normalizers.Sequence(normalize)
    except UnicodeEncodeError:
        raise FileError("the vocabulary holds text that is not UTF-8: fetch a sound conversion of the model") from None
    except Exception as error:  # the library raises bare `Exception`
        raise FileError(
            f"the vocabulary and its merges do not fit together ({error}): fetch the model again"
        ) from error
    return library


def _split_merges(merges: Sequence[str]) -> list[tuple[str, str]]:
    """The two sides of each merge, written with a blank between; a side may itself begin with a blank."""
    pairs = [merge.partition(" ")[::2] for merge in merges]
    if not all(map(all, pairs)):
        pairs = [pair if all(pair) else _split_odd_merge(merge) for pair, merge in zip(pairs, merges, strict=True)]
    return pairs


def _split_odd_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")
    if merge[:1] != " " or not right:
        raise FileError(f"the merge {merge!r} in tokenizer.ggml.merges is not a pair: fetch the model again")
    return " " + left, right


def _make_merges(
    make: Callable[..., Any], ids: dict[str, int], merges: list[tuple[str, str]], options: dict[str, Any]
) -> Any:
    """The merge model. Some files have merges whose parts or result are no tokens; those can never apply."""
    try:
        return make(ids, merges, **options)
    except Exception:
        sound = [pair for pair in merges if pair[0] in ids and pair[1] in ids and pair[0] + pair[1] in ids]
        log.warning("%d merges of the vocabulary name tokens that it lacks: ignored", len(merges) - len(sound))
        return make(ids, sound, **options)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where it is printable, else the next free one from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_value(text: str) -> int | None:
    """The byte of a token spelled `<0x41>`."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return int(text[3:5], 16)
        except ValueError:
            return None
    return None


def _utf8(text: str) -> bytes:
    """The bytes of a token's spelling; the reader keeps bytes that are not UTF-8 as surrogates."""
    return text.encode("utf-8", "surrogateescape")


def load_tokenizer(gguf: MetadataFile) -> Tokenizer:
    """The tokenizer of an open model file. Raises `FileError` for a damaged vocabulary and `UnsupportedModelError`
    for a kind of tokenizer or text splitter that Phobos lacks."""
    vocabulary = read_vocabulary(gguf.metadata)
    if vocabulary.model in ("llama", "t5"):
        codec: Codec = _SentencePieces(vocabulary, model_type=BPE if vocabulary.model == "llama" else UNIGRAM)
        default_bos = vocabulary.model == "llama"
    elif vocabulary.model in ("gpt2", "gemma4"):
        pre = _choose_pretokenizer(vocabulary)
        if not vocabulary.merges:
            raise FileError("the model file lacks tokenizer.ggml.merges: fetch a sound conversion of the model")
        codec = _BytePairs(vocabulary, pre)
        default_bos = pre.add_bos
    else:
        raise UnsupportedModelError(
            f"Phobos cannot read the model's kind of tokenizer, {vocabulary.model!r}: it knows BPE (gpt2) and "
            "SentencePiece (llama), so choose another model"
        )
    add_bos = default_bos if vocabulary.add_bos is None else vocabulary.add_bos
    kept = replace(vocabulary, merges=[], scores=[])
    return Tokenizer(kept, codec, add_bos=add_bos or vocabulary.model == "gemma4")


def _choose_pretokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    if vocabulary.model == "gemma4":
        return find_pretokenizer("gemma4")
    if vocabulary.pre in ("", "default"):
        log.warning(
            "the model file does not say how its text is split (tokenizer.ggml.pre is %s): a general rule is used and "
            "answers may be worse, so prefer a newer conversion of the model",
            "missing" if not vocabulary.pre else "'default'",
        )
        return DEFAULT
    return find_pretokenizer(vocabulary.pre)


__all__ = ["MetadataFile", "Tokenizer", "load_tokenizer"]
