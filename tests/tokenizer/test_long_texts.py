"""Texts of megabytes: refused before they are encoded where no context holds them, else encoded piece by piece, and
what that took is given back."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from models.small_vocabulary import bpe_tokenizer, spm_tokenizer
from phobos.errors import ContextLengthError
from phobos.gguf import tokenizer as module
from phobos.gguf.pretokenizers import TABLE

WORDS = "the a été 日本語 12345 7 ... \n \n\n \t   ' 're ’s x=1; <|im_end|> 😀👩‍🚀 ١٢٣ \r\n Ünï {} ((("
MERGES = ("Ġ t", "h e", "Ġt he", "1 2", "3 4", "12 34", ". .", "Ċ Ċ")


def made_up_text(seed: int, n_words: int) -> str:
    draw = random.Random(seed)
    words = [*WORDS.split(" "), " ", "  ", "\n", "1234567890"]
    return "".join(draw.choice(words) + draw.choice(("", " ", " ", "\n")) for _ in range(n_words))


@pytest.mark.parametrize("pre", sorted(TABLE))
def test_a_text_in_pieces_has_the_tokens_of_the_whole(monkeypatch: pytest.MonkeyPatch, pre: str) -> None:
    tokenizer = bpe_tokenizer(merges=MERGES, pre=pre)
    for seed, size in ((1, 40), (2, 97), (3, 300)):
        text = made_up_text(seed, 400)
        whole = tokenizer.encode(text)
        monkeypatch.setattr(module, "PIECE_CHARS", size)
        assert tokenizer.encode(text) == whole
        monkeypatch.undo()


@pytest.mark.parametrize("text", ["1" * 5000, "a" * 5000, " " * 5000, "\n" * 5000, "1 " * 2500, "."])
def test_texts_without_a_place_to_cut(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    tokenizer = bpe_tokenizer(merges=MERGES)
    whole = tokenizer.encode(text)
    monkeypatch.setattr(module, "PIECE_CHARS", 100)
    assert tokenizer.encode(text) == whole


@pytest.mark.parametrize("make", [bpe_tokenizer, spm_tokenizer])
def test_the_least_number_of_tokens_is_no_more_than_there_are(make) -> None:
    tokenizer = make()
    for seed in range(20):
        text = made_up_text(seed, 300)
        assert 0 < tokenizer.least_tokens(text) <= len(tokenizer.encode(text))
    longest = max(tokenizer.spelling(i) for i in range(tokenizer.n_vocab))
    assert tokenizer.least_tokens(longest * 50) <= len(tokenizer.encode(longest * 50, special=True))
    assert make(remove_extra_whitespaces=True).least_tokens(" " * 10_000) == 0


def test_a_refusal_says_that_it_did_not_count() -> None:
    assert "at least 9 tokens" in str(ContextLengthError(9, 4, at_least=True))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("text", ["hello world ", "1"])
def test_what_encoding_took_is_given_back(text: str) -> None:
    def held_mb() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

    tokenizer = bpe_tokenizer(merges=MERGES)
    tokenizer.encode(text * 1000)
    before = held_mb()
    n_tokens = len(tokenizer.encode(text * (400_000 // len(text))))
    assert n_tokens > 50_000
    assert held_mb() - before < 50
