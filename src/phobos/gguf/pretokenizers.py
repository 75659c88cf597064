"""How each `tokenizer.ggml.pre` cuts a text before byte-pair merging: one row a family.

A text is cut by the patterns in order, each cutting further the pieces that the one before it left; both the matches
and what lies between them are pieces. The patterns are part of a vocabulary's definition (they stand in the model's
original `tokenizer.json`) and are written for Oniguruma, the expression engine of `tokenizers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from phobos.errors import UnsupportedModelError


@dataclass(frozen=True)
class PreTokenizer:
    """`patterns` as above. `ignore_merges`: a piece that is a token as it stands is that token, whatever the merges
    say. `add_bos`: the family's answer where the file is silent. `is_raw`: tokens are spelled in UTF-8 with U+2581
    for a blank, not in GPT-2's byte alphabet."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    is_raw: bool = False


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PLAIN_CONTRACTION = r"'s|'t|'re|'ve|'m|'ll|'d"
_BLANKS = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_OR_PATH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
# Groups of three counted from the right. Looking ahead is bounded, or a million digits would take a quarter of an hour;
# a longer run of digits is counted from the left until its end comes near.
_THOUSANDS = r"\p{N}{1,3}(?=(?:\p{N}{3}){0,100}(?!\p{N}))|\p{N}{3}"
_ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_HAN_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_HANGUL = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def _any_of(*alternatives: str) -> str:
    return "|".join(alternatives)


def _cased(tail: str = "", *, without: str = "") -> str:
    """Words cut where a lower-case letter meets an upper-case one; `tail` may follow a word; `without` is a class
    whose characters belong to no word."""
    upper, lower = f"[{_UPPER}{without}]", f"[{_LOWER}{without}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{upper}*{lower}+{tail}|{start}{upper}+{lower}*{tail}"


def _ranges(text: str) -> str:
    """A class body from hexadecimal code points and ranges."""
    return "".join("-".join(f"\\x{{{point}}}" for point in item.split("-")) for item in text.split())


# The cased letters as Unicode had them when DeepSeek's first vocabularies were made.
_CASED_LETTERS = _ranges(
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376-377 37b-37d 37f 386 388-38a 38c 38e-3a1 "
    "3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a "
    "1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 "
    "1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 "
    "212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183-2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2-2cf3 a640-a66d "
    "a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f "
    "104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
_EAST_ASIAN = _ranges(
    "4e00-9fff 3400-4dbf f900-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff 1780-17ff 1000-109f "
    "aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff"
)

_GPT2 = _any_of(_PLAIN_CONTRACTION, r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", _BLANKS)
_LLAMA3 = _any_of(_CONTRACTION, _WORD, r"\p{N}{1,3}", _SYMBOLS, _LINES, _BLANKS)
_QWEN2 = _any_of(_CONTRACTION, _WORD, r"\p{N}", _SYMBOLS, _LINES, _BLANKS)
_O200K = _any_of(_cased(_CONTRACTION + "?"), r"\p{N}{1,3}", _SYMBOLS_OR_PATH, _LINES, _BLANKS)
_PUNCTUATION = r"[\p{P}$+<=>^~|`]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _HAN_KANA,
    _any_of(_ASCII_WORD, r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r" ?[\p{P}\p{S}]+[\r\n]*", _LINES, _BLANKS),
)
_BLOOM = r" ?[^\s()|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c]+"
_WHOLE_LINES = r"[^\n]+|\n+"

DEFAULT = PreTokenizer((_PUNCTUATION, _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

# Names that share a definition stand together.
_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", DEFAULT),
    (
        "gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert jina-es "
        "jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
        PreTokenizer((_GPT2,)),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3,))),
    (
        "jais-2",
        PreTokenizer(
            (
                _any_of(
                    _any_of(_CONTRACTION, _WORD, r"\p{N}{1,3}", _SYMBOLS, _LINES),
                    *(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")),
                    r"\s",
                ),
            )
        ),
    ),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        PreTokenizer((_QWEN2,)),
    ),
    (
        "qwen35",
        PreTokenizer(
            (
                _any_of(
                    _CONTRACTION,
                    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                    r"\p{N}",
                    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
                    _LINES,
                    _BLANKS,
                ),
            )
        ),
    ),
    ("ufakzeka", PreTokenizer((_any_of(_WORD, r"\p{N}", _SYMBOLS, _LINES, _BLANKS),))),
    ("laguna", PreTokenizer((_WHOLE_LINES, _QWEN2))),
    (
        "minicpm5",
        PreTokenizer(
            (r"\p{N}{1,3}", _any_of(_CONTRACTION, _WORD, r"\p{N}+", _SYMBOLS, _LINES, _BLANKS)), ignore_merges=True
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            (
                _any_of(
                    r"'(?i:[sdmt]|ll|ve|re)",
                    r"[^\r\n\p{L}\p{N}]?+\p{L}+",
                    r"\p{N}",
                    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
                    r"\s*[\r\n]",
                    _BLANKS,
                ),
            )
        ),
    ),
    (
        "seed-coder",
        PreTokenizer((_any_of(_CONTRACTION, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _LINES, _BLANKS),)),
    ),
    (
        "exaone-moe",
        PreTokenizer(
            (
                _any_of(
                    _CONTRACTION,
                    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                    r"\p{N}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                    r"\s*[\r\n]",
                    _BLANKS,
                ),
            )
        ),
    ),
    ("gpt-4o o200k llama4 kanana2 talkie minimax-m2", PreTokenizer((_O200K,))),
    ("granite-embed-multi-97m", PreTokenizer((_O200K,), ignore_merges=True)),
    ("tiny_aya cohere2moe", PreTokenizer((r"\d{1,3}(?=(?:\d{3}){0,100}\b)", _O200K))),
    (
        "tekken",
        PreTokenizer(
            (_any_of(_cased(), r"\p{N}", _SYMBOLS_OR_PATH, _LINES, _BLANKS),), ignore_merges=True, add_bos=True
        ),
    ),
    (
        "youtu",
        PreTokenizer(
            (
                r"[\uac00-\ud7a3\u3131-\u318e]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|"
                + _HAN_KANA,
                _any_of(_cased(_CONTRACTION + "?"), r"\p{N}", _SYMBOLS_OR_PATH, _LINES, _BLANKS),
            ),
            ignore_merges=True,
        ),
    ),
    (
        "kimi-k2",
        PreTokenizer(
            (
                _any_of(
                    r"\p{Han}+",
                    _cased(_CONTRACTION + "?", without=r"&&[^\p{Han}]"),
                    r"\p{N}{1,3}",
                    _SYMBOLS,
                    _LINES,
                    _BLANKS,
                ),
            )
        ),
    ),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", PreTokenizer(_DEEPSEEK3)),
    (
        "spark2_5",
        PreTokenizer(
            (
                r"\p{N}{1,3}",
                _HAN_KANA,
                _any_of(_ASCII_WORD, r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r" ?[\p{P}\p{S}]+", r"[\r\n]", _BLANKS),
                r"\p{N}",
            )
        ),
    ),
    ("afmoe", PreTokenizer((_THOUSANDS, f"[{_EAST_ASIAN}]+", _DEEPSEEK3[2]))),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_CASED_LETTERS}]+",
                r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
                r"\s+$",
                _HAN_HANGUL,
                r"\p{N}",
            )
        ),
    ),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}"))),
    ("falcon", PreTokenizer((_PUNCTUATION, _GPT2, r"[0-9][0-9][0-9]"))),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    ("superbpe", PreTokenizer((r"\p{N}+", _THOUSANDS))),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    (
        "chameleon",
        PreTokenizer(
            (
                r"<sentinel:[0-9]+>",
                r"IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("gemma4 granite-embed-multi-311m", PreTokenizer((_WHOLE_LINES,), add_bos=True, is_raw=True)),
    ("sarvam-moe", PreTokenizer((_WHOLE_LINES,), is_raw=True)),
)

TABLE = {name: definition for names, definition in _FAMILIES for name in names.split()}


def find_pretokenizer(name: str) -> PreTokenizer:
    """The definition for a `tokenizer.ggml.pre`. Raises `UnsupportedModelError` for a name this table lacks."""
    if name not in TABLE:
        raise UnsupportedModelError(
            f"the model's text splitter {name!r} (tokenizer.ggml.pre) is not known to this version of Phobos: "
            "use a newer version, or another model"
        )
    return TABLE[name]
