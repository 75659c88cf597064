"""The tokenizers of the real models."""

import os
import time
from pathlib import Path

import pytest

from phobos.gguf.reader import open_gguf
from phobos.gguf.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.model


def model(name: str) -> Path:
    folder = Path(os.environ.get("PHOBOS_TEST_MODELS", Path(__file__).parents[2] / "models"))
    if not (folder / name).is_file():
        pytest.skip(f"no {name} in models/: fetch it, or set PHOBOS_TEST_MODELS")
    return folder / name


def load(name: str) -> Tokenizer:
    with open_gguf(model(name)) as gguf:
        return load_tokenizer(gguf)


def test_six_tabs_on_gemma() -> None:
    tokenizer = load("gemma-3-270m-Q4_K_M.gguf")
    ids = tokenizer.encode("\t\t\t\t\t\ttest")
    assert [tokenizer.spelling(i) for i in ids] == ["\t\t\t\t\t\t", "test"]
    assert {tokenizer.spelling(i) for i in tokenizer.end_ids} == {"<eos>", "<end_of_turn>"}
    assert tokenizer.add_bos


def test_qwen_is_ready_in_time() -> None:
    """152k tokens and merges. Processor time, because other work may share the machine."""
    path = model("qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf")
    import tokenizers  # noqa: F401 - its import is not what is measured

    with open_gguf(path) as gguf:
        before = time.thread_time()
        tokenizer = load_tokenizer(gguf)
        assert time.thread_time() - before < 1.0
    assert tokenizer.n_vocab == 151_936
    assert tokenizer.infill_ids == (151_659, 151_661, 151_660)


def test_long_text_comes_back() -> None:
    tokenizer = load("SmolLM2-135M-Instruct-Q4_1.gguf")
    text = "The quick brown fox: été, 日本, 12345.\n\n" * 500
    assert tokenizer.decode(tokenizer.encode(text)) == text
