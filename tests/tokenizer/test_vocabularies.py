"""The shared vocabularies give exactly the token ids that the reference gave for the same texts."""

from pathlib import Path

import pytest

from models.small_vocabulary import shared_files
from phobos.gguf.reader import open_gguf
from phobos.gguf.tokenizer import Tokenizer, load_tokenizer


@pytest.mark.parametrize("path", shared_files("vocab", "*.gguf"))
def test_shared_vocabularies(path: Path) -> None:
    """One test a file, because loading takes longest."""
    with open_gguf(path) as gguf:
        tokenizer = load_tokenizer(gguf)
    check_ids(path, tokenizer)
    check_control(tokenizer)


def check_ids(path: Path, tokenizer: Tokenizer) -> None:
    """Ids equal the reference's and the texts come back, at once and streamed."""
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().split("\n")
    expected = [[int(word) for word in line.split()] for line in lines]
    assert len(texts) > 40
    assert not any(expected[len(texts) :])
    for text, ids in zip(texts, expected, strict=False):
        assert tokenizer.encode(text) == ids, repr(text)
        assert tokenizer.decode(ids) == text
        decoder = tokenizer.stream_decoder()
        assert "".join([*(decoder.push(i) for i in ids), decoder.flush()]) == text


def check_control(tokenizer: Tokenizer) -> None:
    """Control tokens come only where they are asked for."""
    assert tokenizer.end_ids
    for token_id in tokenizer.end_ids:
        text = f"a{tokenizer.spelling(token_id)}b"
        assert tokenizer.control_ids.isdisjoint(tokenizer.encode(text))
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode(text, special=True).count(token_id) == 1
