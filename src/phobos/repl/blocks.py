"""Markdown in blocks: what of a growing answer is finished for good, and how one block looks.

A block is a paragraph, a heading, a table, a piece of code, or one item of a list. A block is finished once a whole
line after it belongs to another; so a finished block never changes, can be printed once and scroll away, and only the
last one is drawn again and again. The looks differ from Rich's own where a chat needs it: headings stand left, code
has no frame or padding that copying would pick up, every line break the model made is kept, and no text is lost
because it looks like HTML.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from phobos.printable import clean

CODE_INDENT = 2
# A last line of marks alone may still become anything: it waits for the next letters.
_MARKS = re.compile(r"\n[ \t]*(?:[-=*_#>|+~`]{1,3}|\d{1,3}[.)]?)[ \t]*\Z")


@dataclass(frozen=True)
class Block:
    """The source of one block; `joined`: it stands right under the one before, as the items of a close list do.
    `grows`: text is only added at its end, so lines drawn once stay as they are (not so in a table)."""

    text: str
    joined: bool = False
    grows: bool = True


def split_blocks(text: str) -> list[Block]:
    """The blocks of a text; the last may be unfinished."""
    starts: list[tuple[int, bool]] = []  # first line, and whether it is a table
    for token in Markdown(text).parsed:
        item = token.type == "list_item_open" and token.level == 1
        if token.map is None or token.nesting < 0 or not (item or token.level == 0):
            continue
        if not starts or token.map[0] > starts[-1][0]:
            starts.append((token.map[0], token.type == "table_open"))
    lines = text.splitlines(keepends=True)
    blocks = []
    for index, (first, is_table) in enumerate(starts):
        begin = 0 if index == 0 else first
        end = starts[index + 1][0] if index + 1 < len(starts) else len(lines)
        joined = index > 0 and bool(lines[first - 1].strip())
        blocks.append(Block("".join(lines[begin:end]), joined, not is_table))
    return blocks or ([Block(text)] if text.strip() else [])


def take_finished(text: str) -> tuple[list[Block], str]:
    """The finished blocks at the head of a growing text, and the rest."""
    blocks = split_blocks(text[: text.rfind("\n") + 1])[:-1]
    return blocks, text[sum(len(block.text) for block in blocks) :]


def drawable(text: str) -> str:
    """An unfinished block without a last line that is not clear yet."""
    return _MARKS.sub("", text)


class LeftHeading(Heading):
    """A heading at the left edge, without a frame."""

    LEVEL_ALIGN: ClassVar[dict[str, Any]] = {f"h{level}": "left" for level in range(1, 7)}


class PlainCode(CodeBlock):
    """Highlighted code in the terminal's own colours, indented, nothing around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines of code, wrapped where they must be."""
        code = str(self.text).rstrip()
        syntax = Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)
        yield Padding(syntax, (0, 0, 0, CODE_INDENT))


class ChatMarkdown(Markdown):
    """Markdown as the module says."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": LeftHeading,
        "fence": PlainCode,
        "code_block": PlainCode,
    }

    def __init__(self, text: str) -> None:
        super().__init__(text, hyperlinks=False)
        for token in self.parsed:
            if token.type == "html_block":
                token.type, token.tag, token.info = "code_block", "code", "html"
            if token.children:
                token.children = _keep_text(token.children)


def _keep_text(children: list[Any]) -> list[Any]:
    """The parts of a line, so that nothing of it is lost: breaks, HTML, pictures, and addresses only once."""
    kept: list[Any] = []
    for token in children:
        if token.type == "softbreak":
            token.type = "hardbreak"
        elif token.type == "html_inline":
            token.type = "text"
        elif token.type == "image":
            token.type, token.tag, token.children = "text", "", None
            token.content = f"![{token.content}]({token.attrs.get('src', '')})"
        elif token.type in ("link_open", "link_close") and token.markup == "autolink":
            continue  # its text is its address
        kept.append(token)
    return kept


def render_block(text: str) -> RenderableType:
    """How a block is drawn."""
    return ChatMarkdown(clean(text))


class BlockPrinter:
    """Turns renderables into lines of a terminal, each ready to be written and complete in itself."""

    _END_BLANKS = re.compile(r"[ ]+((?:\x1b\[[0-9;]*m)*)$")
    ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

    def __init__(self, console: Console) -> None:
        self.console = console

    def lines(self, renderable: RenderableType) -> list[str]:
        """The lines of anything Rich can draw, without blanks at their ends."""
        with self.console.capture() as captured:
            self.console.print(renderable, highlight=False)
        lines = [self._END_BLANKS.sub(r"\1", line) for line in captured.get().split("\n")]
        return _without_blank_ends(lines)

    def block(self, text: str) -> list[str]:
        """The lines of a block of Markdown; as it stands where Rich cannot draw it."""
        try:
            return self.lines(render_block(text))
        except Exception:  # Rich asserts what odd nestings break; the answer must be readable all the same
            return self.lines(Text(clean(text)))

    @classmethod
    def plain(cls, line: str) -> str:
        """A line's letters, without its colours."""
        return cls.ESCAPES.sub("", line)


def _without_blank_ends(lines: list[str]) -> list[str]:
    first, last = 0, len(lines)
    while first < last and not BlockPrinter.plain(lines[first]).strip():
        first += 1
    while last > first and not BlockPrinter.plain(lines[last - 1]).strip():
        last -= 1
    return lines[first:last]
