"""Turns tokens into text one by one, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Owned by one sequence. Bytes of an incomplete character wait; a byte that cannot become part of any character
    is U+FFFD as soon as that is certain. All pushes and the flush, joined, are `Tokenizer.decode` of the same ids.

    `piece` gives a token's bytes; `is_hidden` says which tokens have no text; `strip_blank` drops one blank at the
    very start (the one SentencePiece puts before a text).
    """

    def __init__(self, piece: Callable[[int], bytes], is_hidden: Callable[[int], bool], strip_blank: bool) -> None:
        self._piece = piece
        self._is_hidden = is_hidden
        self._strip_blank = strip_blank
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; possibly none."""
        if self._is_hidden(token_id):
            return ""
        data = self._piece(token_id)
        if self._strip_blank and data:
            self._strip_blank = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left when no more tokens come: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)
