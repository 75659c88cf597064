"""A Lark grammar of plain text, as rules for the same text inside a JSON string.

Quotation marks, backslashes and line breaks are two characters there, and each begins with a backslash; a lexer that
takes the longest match would not know whether one ends a word. So everything becomes rules over single characters:
what is a terminal in the grammar is a rule here. The texts that fit are the same.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field

MAX_BYTES = 64 << 10
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<regex>/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/)
    |(?P<import>%import\s+common\.(?P<imported>\w+)[ \t]*(?:->\s*(?P<called>\w+))?)|(?P<alias>->\s*\w+)
    |(?P<repeat>~\s*(?P<least>\d+)(?:\s*\.\.\s*(?P<most>\d+))?)|(?P<name>[?!]?[A-Za-z_]\w*)|(?P<priority>\.-?\d+(?=\s*:))
    |(?P<sign>[():|?*+\[\]])|(?P<space>\s+)""",
    re.VERBOSE,
)
_COMMON = {
    "LF": r"\n",
    "CR": r"\r",
    "NEWLINE": r"(\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "DIGIT": "[0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "NUMBER": r"[0-9]+(\.[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?[0-9]+(\.[0-9]+)?",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
}
_SPECIAL = '"\\\n\r\t\b\f'
_PLAIN = [chr(i) for i in range(0x20, 0x7F) if chr(i) not in _SPECIAL] + ["é", "中", "😀"]


class Unquotable(ValueError):  # noqa: N818 - an outcome
    """The grammar has something that has no such form."""


def quote_grammar(grammar: str, start: str) -> list[str]:
    """Rules of the same language inside a JSON string; `start` is the first, and begins the names of all. Raises
    `Unquotable`."""
    if len(grammar.encode("utf-8", "replace")) > MAX_BYTES:
        raise Unquotable("it is too long")
    return _Quoter(start).run(grammar)


@dataclass
class _Quoter:
    start: str
    classes: dict[str, str] = field(default_factory=dict)

    def run(self, grammar: str) -> list[str]:
        """All rules."""
        rules: list[str] = []
        body: list[str] = []
        tokens = self._tokens(grammar)
        for i, (kind, text) in enumerate(tokens):
            if kind == "name" and i + 1 < len(tokens) and tokens[i + 1] == ("sign", ":"):
                rules += [" ".join(body)] if body else []
                body = [self._name(text)]
            else:
                body.append(text if kind in ("sign", "done") else self._name(text))
        rules += [" ".join(body)] if body else []
        if not any(rule.startswith(f"{self.start} ") for rule in rules):
            raise Unquotable("it has no start")
        return [*rules, *(f"{name}: {terminal}" for terminal, name in self.classes.items())]

    def _tokens(self, grammar: str) -> list[tuple[str, str]]:
        """What a grammar is made of, with texts and patterns in their new form as `done`."""
        found: list[tuple[str, str]] = []
        at = 0
        while at < len(grammar):
            match = _TOKEN.match(grammar, at)
            if match is None:
                raise Unquotable(f"it has {grammar[at : at + 20]!r}")
            at = match.end()
            kind, text = match.lastgroup, match.group()
            if match["string"] or match["regex"]:
                if grammar[at : at + 1].isalpha() or grammar.startswith("..", at):
                    raise Unquotable("it has flags or ranges")
                found.append(("done", self._string(text) if match["string"] else self._regex(text[1:-1])))
            elif match["import"]:
                name, pattern = match["called"] or match["imported"], _COMMON.get(match["imported"])
                if pattern is None:
                    raise Unquotable(f"it imports {match['imported']}")
                found += [("name", name), ("sign", ":"), ("done", self._regex(pattern))]
            elif match["repeat"]:
                most = match["most"] or match["least"]
                found.append(("done", f"{{{match['least']},{most}}}"))
            elif kind == "name" or match["name"]:
                found.append(("name", text.lstrip("?!")))
            elif match["sign"]:
                found.append(("sign", {"[": "(", "]": ")?"}.get(text, text)))
        return found

    def _name(self, name: str) -> str:
        if name == "start":
            return self.start
        return f"{self.start}_{'t_' if name.isupper() else ''}{name.strip('_').lower()}"

    def _string(self, text: str) -> str:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError) as error:
            raise Unquotable("it has a text that is none") from error
        return _quoted(value) if value else '""'

    def _regex(self, pattern: str) -> str:
        return f"({_Pattern(pattern, self).alternatives()})"

    def char_class(self, pattern: str) -> str:
        """One character of a class, as a body."""
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise Unquotable(f"it has {pattern!r}") from error
        bodies = [_quoted(char) for char in _SPECIAL if compiled.fullmatch(char)]
        if any(compiled.fullmatch(char) for char in _PLAIN):
            terminal = f'/{pattern.replace("/", chr(92) + "/")}/ & /[^"\\\\\\x00-\\x1f]/'
            bodies.append(self.classes.setdefault(terminal, f"{self.start.upper()}_C{len(self.classes)}"))
        if not bodies:
            raise Unquotable(f"nothing fits {pattern!r}")
        return f"({' | '.join(bodies)})"


class _Pattern:
    """Reads a regular expression into bodies of rules."""

    def __init__(self, pattern: str, quoter: _Quoter) -> None:
        self._text = pattern
        self._quoter = quoter
        self._at = 0

    def alternatives(self) -> str:
        """Up to the end or a closing bracket."""
        bodies = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            bodies.append(self._sequence())
        return " | ".join(bodies)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _sequence(self) -> str:
        parts: list[str] = []
        while (char := self._peek()) and char not in "|)":
            if char in "^$":
                if 0 < self._at < len(self._text) - 1:
                    raise Unquotable("it has an anchor within a pattern")
                self._at += 1
                continue
            parts.append(self._atom() + self._quantifier())
        return " ".join(parts) or '""'

    def _atom(self) -> str:
        char = self._peek()
        self._at += 1
        if char == "(":
            return self._group()
        if char == ".":
            return self._quoter.char_class(r"[^\n]")
        if char == "[":
            end = re.compile(r"\^?\]?(?:\\.|[^\]\\])*\]").match(self._text, self._at)
            if end is None:
                raise Unquotable("it has an open class")
            self._at = end.end()
            return self._quoter.char_class("[" + end.group())
        if char == "\\":
            escaped = self._peek()
            self._at += 1
            if escaped in "dDwWsS" and escaped:
                return self._quoter.char_class("\\" + escaped)
            if escaped.isalnum() and escaped not in "ntrf":
                raise Unquotable(f"it has \\{escaped}")
            return _quoted({"n": "\n", "t": "\t", "r": "\r", "f": "\f"}.get(escaped, escaped))
        if char in "*+?{":
            raise Unquotable("it repeats nothing")
        return _quoted(char)

    def _group(self) -> str:
        if self._peek() == "?":
            named = re.compile(r"\?(?::|P?<[A-Za-z_]\w*>)").match(self._text, self._at)
            if named is None:
                raise Unquotable("it looks around or has flags")
            self._at = named.end()
        inner = self.alternatives()
        if self._peek() != ")":
            raise Unquotable("it has an open group")
        self._at += 1
        return f"({inner})"

    def _quantifier(self) -> str:
        found = re.compile(r"([*+?]|\{\d+(?:,\d*)?\})\??").match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[1]


def _quoted(text: str) -> str:
    """A text inside a JSON string, as a Lark string."""
    return json.dumps(json.dumps(text, ensure_ascii=False)[1:-1], ensure_ascii=False)
