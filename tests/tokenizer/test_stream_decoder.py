"""Streaming text: never half a character, nothing lost, and the same text as decoding at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.small_vocabulary import CONTROL, bpe_tokenizer, spm_tokenizer

BPE = bpe_tokenizer(merges=("Ġ w", "ð Ł"))
SPM = spm_tokenizer(extra=(("<end_of_turn>", CONTROL),))


def test_an_emoji_byte_by_byte() -> None:
    alphabet = {BPE.piece(i): i for i in range(256)}
    decoder = BPE.stream_decoder()
    assert decoder.push(alphabet[b"a"]) == "a"
    pushed = [decoder.push(alphabet[bytes((byte,))]) for byte in "🤦".encode()]
    assert pushed == ["", "", "", "🤦"]
    assert decoder.flush() == ""


@pytest.mark.parametrize(
    ("data", "texts", "rest"),
    [
        (b"\xf0\x9f", ["", ""], "�"),
        (b"\xf0A", ["", "�A"], ""),
        (b"\xff", ["�"], ""),
        (b"\xc3\xa9", ["", "é"], ""),
        (b"\xe2\x82", ["", ""], "�"),
        (b"\xed\xa0A", ["", "", "��A"], ""),
    ],
)
def test_broken_bytes_show_as_soon_as_it_is_certain(data: bytes, texts: list[str], rest: str) -> None:
    alphabet = {BPE.piece(i): i for i in range(256)}
    decoder = BPE.stream_decoder()
    assert [decoder.push(alphabet[bytes((byte,))]) for byte in data] == texts
    assert decoder.flush() == rest


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 258), max_size=40), st.booleans(), st.booleans())
def test_pushes_joined_equal_decode(ids: list[int], special: bool, continues: bool) -> None:
    for tokenizer in (BPE, SPM):
        decoder = tokenizer.stream_decoder(special=special, continues=continues)
        pushed = [decoder.push(i) for i in ids]
        assert "".join([*pushed, decoder.flush()]) == tokenizer.decode(ids, special=special, continues=continues)
        shown = [i for i in ids if special or i not in tokenizer.control_ids]
        data = b"".join(tokenizer.piece(i) for i in shown)
        assert tokenizer.decode(ids, special=special, continues=True) == data.decode("utf-8", "replace")


def test_control_tokens_have_no_text_unless_asked() -> None:
    end = SPM.token_id("<end_of_turn>") or -1
    assert SPM.stream_decoder().push(end) == ""
    assert SPM.stream_decoder(special=True).push(end) == "<end_of_turn>"


def test_the_first_blank_is_dropped_once() -> None:
    hi = SPM.token_id("▁hi") or -1
    decoder = SPM.stream_decoder()
    assert [decoder.push(hi), decoder.push(hi)] == ["hi", " hi"]
    decoder = SPM.stream_decoder(continues=True)
    assert decoder.push(hi) == " hi"
