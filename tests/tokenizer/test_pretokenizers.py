"""Where each family cuts: small texts whose pieces are known from the vocabularies' own definitions."""

import time

import pytest
from tokenizers import Regex, pre_tokenizers

from phobos.errors import UnsupportedModelError
from phobos.gguf.pretokenizers import TABLE, find_pretokenizer

NAMES = """
llama-bpe llama3 falcon3 pixtral lfm2 midm-2.0 qwen2 deepseek-r1-qwen qwen35 deepseek-llm deepseek-coder deepseek-v3
falcon starcoder gpt-2 mpt smollm command-r gpt-4o o200k llama4 glm4 chatglm-bpe gemma4 minicpm5 hunyuan hunyuan-dense
kimi-k2 tekken olmo dbrx refact jais jais-2 stablelm2 viking poro-chat bloom gpt3-finnish exaone exaone4 exaone-moe
superbpe bailingmoe bailingmoe2 llada-moe seed-coder granite-docling minimax-m2 smaug-bpe codeshell chameleon minerva-7b
megrez trillion grok-2 afmoe solar-open youtu joyai-llm tiny_aya laguna spark2_5 default
""".split()  # noqa: SIM905


def cut(name: str, text: str) -> list[str]:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in find_pretokenizer(name).patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


def test_the_table_knows_the_published_names() -> None:
    assert set(NAMES) <= set(TABLE)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_pattern_compiles_and_loses_nothing(name: str) -> None:
    text = "Hello, WORLD's  42½ 12345 été\r\n\n\t if (x)==1: 日本語かな한국어 मराठी 🤦🏼‍♂️ ...\n "
    assert "".join(cut(name, text)) == text
    assert cut(name, "") == []


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "I'm at 1234 ok  now", ["I", "'m", " at", " 1234", " ok", " ", " now"]),
        ("gpt-2", "I'M", ["I", "'", "M"]),
        ("llama-bpe", "I'M at 1234", ["I", "'M", " at", " ", "123", "4"]),
        ("qwen2", "at 123", ["at", " ", "1", "2", "3"]),
        ("qwen2", "में", ["म", "ें"]),
        ("qwen35", "में", ["में"]),
        ("starcoder", " 12", [" ", "1", "2"]),
        ("gpt-4o", "HelloWorld's", ["Hello", "World's"]),
        ("tekken", "HelloWORLD 12", ["Hello", "WORLD", " ", "1", "2"]),
        ("kimi-k2", "abc中文def1234", ["abc", "中文", "def", "123", "4"]),
        ("deepseek-v3", "1234中文x", ["123", "4", "中文", "x"]),
        ("deepseek-coder", "a 12\n", ["a", " ", "1", "2", "\n"]),
        ("deepseek-llm", "aƻ b", ["a", "ƻ", " b"]),
        ("falcon", "12345", ["123", "45"]),
        ("superbpe", "the 12345", ["the ", "12", "345"]),
        ("afmoe", "1234567", ["1", "234", "567"]),
        ("afmoe", "1" * 100, ["1", *["111"] * 33]),
        ("tiny_aya", "1234 5", ["1", "234", " ", "5"]),
        ("afmoe", "12x123", ["12", "x", "123"]),
        ("viking", "a12 b", ["a", "1", "2", " b"]),
        ("bloom", "a(b) c", ["a", "(", "b", ")", " c"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
        ("seed-coder", "!!\n", ["!!", "\n"]),
        ("llama-bpe", "!!\n", ["!!\n"]),
        ("bailingmoe", "\n\na", ["\n\n", "a"]),
        ("jais-2", "a" + " " * 5 + "b", ["a", "    ", " b"]),
        ("ufakzeka", "Ali'dan", ["Ali", "'dan"]),
        ("minicpm5", "x12345", ["x", "123", "45"]),
        ("chameleon", "a1!", ["a", "1", "!"]),
        ("exaone-moe", "안 녕", ["안 녕"]),
    ],
)
def test_known_cuts(name: str, text: str, pieces: list[str]) -> None:
    assert cut(name, text) == pieces


def test_an_unknown_name_is_a_sentence() -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre"):
        find_pretokenizer("gpt-2 ")


@pytest.mark.parametrize("name", ["afmoe", "superbpe", "tiny_aya", "exaone-moe", "jais-2", "llama-bpe", "kimi-k2"])
@pytest.mark.parametrize("text", ["7", " ", "a ", "'", "\u0301", "!"])
def test_long_runs_take_linear_time(name: str, text: str) -> None:
    before = time.thread_time()
    cut(name, text * 60_000)
    assert time.thread_time() - before < 3
