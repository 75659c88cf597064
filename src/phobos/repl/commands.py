"""The slash commands: one table, one small function each. What they need they find on the `Desk`.

A line is a command if its first word is `/` and letters; so a path at the start of a question is no command. What
goes wrong in a command is a `PhobosError`, which the caller shows; the chat goes on.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from phobos.errors import FileError, UsageError
from phobos.printable import clean
from phobos.repl.desk import Desk, Draft
from phobos.repl.knobs import KNOBS, set_knob, show_value
from phobos.repl.terminal import copy_text
from phobos.repl.transcript import (
    code_blocks,
    from_json,
    read_file,
    to_json,
    to_markdown,
    to_text,
    write_file,
)
from phobos.sizes import format_seconds

_COMMAND = re.compile(r"/([a-z?]+)(?:\s+(.*))?\Z", re.DOTALL | re.IGNORECASE)
# What users of other programs type.
_OTHER_NAMES = {"exit": "quit", "bye": "quit", "q": "quit", "?": "help", "h": "help", "new": "clear", "reset": "clear"}
BARE_WORDS = {"exit": "quit", "quit": "quit", "bye": "quit", "?": "help"}
SHOWN_TOKENS = 200


@dataclass(frozen=True)
class Command:
    """`argument` as the help shows it; `completes` says what may follow: "path", "knob", "model", or words."""

    name: str
    argument: str
    summary: str
    run: Callable[[Desk, str], None]
    completes: str | tuple[str, ...] = ()


def parse_command(line: str) -> tuple[str, str] | None:
    """The command's name and argument, or None where the line is a message. Two slashes begin a message with one."""
    found = _COMMAND.match(line.strip())
    if found is None:
        return None
    name = _OTHER_NAMES.get(found[1].lower(), found[1].lower())
    if found[1] != found[1].lower() and name not in {command.name for command in COMMANDS}:
        return None  # "/Users are people"
    return name, (found[2] or "").strip()


def unescape(line: str) -> str:
    """A message that begins with a slash, without the one that says it is no command."""
    return line.replace("//", "/", 1) if line.lstrip().startswith("//") else line


def offered(desk: Desk) -> dict[str, Command]:
    """The commands that work here, in the order of the help."""
    can_decide = desk.session.partner.can_decide
    return {c.name: c for c in COMMANDS if c.name != "decide" or can_decide()}


def run_command(desk: Desk, name: str, argument: str) -> None:
    """Do it. Raises `PhobosError`."""
    command = next((c for c in COMMANDS if c.name == name), None)
    if command is None:
        near = difflib.get_close_matches(name, [c.name for c in COMMANDS], n=1, cutoff=0.5)
        raise UsageError(
            f"there is no /{name}: " + (f"did you mean /{near[0]}?" if near else "/help lists all commands")
        )
    command.run(desk, argument)


def _help(desk: Desk, argument: str) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for command in offered(desk).values():
        table.add_row(Text.assemble((f"/{command.name}", "bold"), " ", command.argument), command.summary)
    desk.show(table)
    desk.say(
        "Alt-Enter starts a new line, Ctrl-R searches what you typed, Ctrl-X Ctrl-E opens an editor; "
        "Ctrl-C ends an answer, twice quits, as Ctrl-D does."
    )


def _system(desk: Desk, argument: str) -> None:
    transcript = desk.session.transcript
    if not argument:
        desk.say(transcript.system or "no system prompt is set: /system TEXT sets one")
        return
    transcript.system = None if argument == "off" else argument
    desk.say("system prompt removed" if argument == "off" else "system prompt set; it applies from the next answer on")


def _set(desk: Desk, argument: str) -> None:
    session = desk.session
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    if name:
        if not value.strip():
            raise UsageError(f"usage: /set {name} VALUE, or /set {name} default")
        session.sampling = set_knob(session.sampling, name, value.strip())
    table = Table.grid(padding=(0, 2))
    shown = [name.lower().replace("_", "-")] if name else list(KNOBS)
    for key in shown:
        table.add_row(key, show_value(session.sampling, key), Text(KNOBS[key].summary, style="dim"))
    desk.show(table)


def _think(desk: Desk, argument: str) -> None:
    session = desk.session
    words = argument.lower()
    if words == "show":
        answer = session.transcript.last_answer
        if answer is None or not answer.reasoning:
            raise UsageError("the last answer has no reasoning: turn it on with /think on")
        desk.show(Text(clean(answer.reasoning).strip(), style="dim italic"))
        return
    if words in ("keep", "fold"):
        session.fold_reasoning = words == "fold"
        desk.say("reasoning stays open" if words == "keep" else "reasoning folds to one line when it ends")
        return
    if words not in ("", "on", "off"):
        raise UsageError(f"/think {argument} is not understood: use on, off, show, keep or fold")
    wanted = not session.thinking if not words else words == "on"
    if wanted and not session.partner.info.can_think:
        raise UsageError("this model's chat format has no reasoning: choose another model with /model")
    session.thinking = wanted
    desk.say("reasoning is on" if wanted else "reasoning is off")


def _retry(desk: Desk, argument: str) -> None:
    session = desk.session
    index = session.transcript.last_user_index
    if index is None:
        raise UsageError("nothing to retry yet: ask something first")
    if session.sampling.seed not in (None, -1) or session.sampling.temperature == 0:
        desk.say("with this seed or temperature the answer will be the same (/set seed -1, /set temp default)")
    kept = session.transcript.turns[index:]
    session.transcript.cut(index)
    n_before = len(session.transcript.turns)
    desk.ask(kept[0].content or "")
    if len(session.transcript.turns) == n_before:  # no answer came: better the old one than none
        session.transcript.turns += kept


def _edit(desk: Desk, argument: str) -> None:
    index = desk.session.transcript.last_user_index
    if index is None:
        raise UsageError("nothing to edit yet: ask something first")
    desk.draft = Draft(desk.session.transcript.turns[index].content or "", index)


def _undo(desk: Desk, argument: str) -> None:
    question = desk.session.transcript.undo()
    if question is None:
        raise UsageError("nothing to undo")
    first = (question.content or "").strip().splitlines() or [""]
    desk.say(f"forgotten: {clean(first[0])[:60]}")


def _clear(desk: Desk, argument: str) -> None:
    desk.session.transcript.turns.clear()
    desk.session.file = None
    desk.keeper.begin()
    desk.say("a new conversation")


def _path_of(argument: str) -> Path:
    return Path(argument.strip("\"'")).expanduser()


def _may_write(desk: Desk, path: Path) -> bool:
    """Whether the path is free, ours, or given up by its owner."""
    return not path.exists() or path == desk.session.file or desk.confirm(f"{path} already exists. Replace it?")


def _save(desk: Desk, argument: str) -> None:
    session = desk.session
    path = _path_of(argument) if argument else session.file
    if path is None:
        raise UsageError("usage: /save FILE.json")
    if not session.transcript.messages:
        raise UsageError("nothing to save yet: ask something first")
    if not _may_write(desk, path):
        raise FileError(f"{path} was left as it is: name another file")
    write_file(path, to_json(session.transcript.messages))
    session.file = path
    desk.say(f"saved {len(session.transcript.messages)} messages to {path}")


def _load(desk: Desk, argument: str) -> None:
    if not argument:
        raise UsageError("usage: /load FILE.json")
    path = _path_of(argument)
    messages = from_json(read_file(path), str(path))
    desk.session.transcript.replace(messages)
    desk.session.file = path
    desk.keeper.begin()
    desk.say(f"loaded {len(messages)} messages from {path}")
    last = desk.session.transcript.last_answer
    if last is not None and last.content:
        lines = clean(last.content).strip().splitlines()
        desk.say("\n".join(lines[:3]) + (" …" if len(lines) > 3 else ""))


def _export(desk: Desk, argument: str) -> None:
    session = desk.session
    if not argument:
        raise UsageError("usage: /export FILE.md")
    path = _path_of(argument)
    if not session.transcript.messages:
        raise UsageError("nothing to export yet: ask something first")
    if not _may_write(desk, path):
        raise FileError(f"{path} was left as it is: name another file")
    write_file(path, to_markdown(session.transcript.messages, session.partner.info.model))
    desk.say(f"written to {path}")


def _copy(desk: Desk, argument: str) -> None:
    answer = desk.session.transcript.last_answer
    if answer is None or not answer.content:
        raise UsageError("no answer to copy yet: ask something first")
    text = answer.content
    if argument == "code":
        blocks = code_blocks(text)
        if not blocks:
            raise UsageError("the last answer has no code: /copy copies all of it")
        text = blocks[-1]
    elif argument:
        raise UsageError(f"/copy {argument} is not understood: use /copy, or /copy code for the last code block")
    way = copy_text(text, desk.console.file)
    desk.say(f"copied {len(text)} letters by {way}")


def _model(desk: Desk, argument: str) -> None:
    session = desk.session
    info = session.partner.info
    if not argument:
        detail = f" ({info.detail})" if info.detail else ""
        desk.say(f"{info.model}{detail}{f' on {info.where}' if info.where else ''}")
        others = session.partner.models()
        if others and not info.where:
            desk.say(f"available: {', '.join(others)}; /model NAME switches")
        return
    session.partner = desk.open_model(argument)
    session.thinking = session.thinking and session.partner.info.can_think
    desk.say(f"now {session.partner.info.model}; the conversation goes on")


def _stats(desk: Desk, argument: str) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    for name, value in desk.session.describe_stats():
        table.add_row(name, Text(value))
    desk.show(table)


def _tokens(desk: Desk, argument: str) -> None:
    session = desk.session
    if not argument:
        n_ctx = session.partner.info.n_ctx
        if not session.transcript.messages:
            raise UsageError("the conversation is empty: /tokens TEXT counts a text")
        n_tokens = session.partner.count_prompt(session.build_request())
        of = f" of {n_ctx} ({n_tokens / n_ctx:.0%})" if n_ctx else ""
        desk.say(f"the conversation has {n_tokens} tokens{of}; /tokens TEXT shows those of a text")
        return
    tokens = session.partner.tokenize(argument)
    shown = Text()
    for index, token in enumerate(tokens[:SHOWN_TOKENS]):
        shown.append(repr(token.text)[1:-1] or "''", style=("cyan", "magenta")[index % 2])
        shown.append(f" {token.token_id}  ", style="dim")
    if len(tokens) > SHOWN_TOKENS:
        shown.append("…", style="dim")
    desk.show(shown)
    desk.say(f"{len(tokens)} tokens")


def _decide(desk: Desk, argument: str) -> None:
    session = desk.session
    question, mark, rest = argument.rpartition("?")
    labels = tuple(dict.fromkeys(label.strip() for label in rest.split("|") if label.strip()))
    if len(labels) < 2:
        raise UsageError("give two or more labels: /decide yes | no, or /decide is it urgent? yes | no")
    if not session.partner.can_decide():
        raise UsageError("this server has no /v1/systemone: chat with Phobos itself")
    began_s = time.monotonic()
    state = to_text(session.transcript.messages)
    decision = session.partner.decide(state, question.strip() + mark if question.strip() else "", labels)
    took_s = time.monotonic() - began_s
    best = max(range(len(labels)), key=lambda index: decision.probabilities[index])
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(10, desk.console.width - 40))
    for index, (label, chance) in enumerate(zip(decision.labels, decision.probabilities, strict=True)):
        style = "bold green" if index == best else ""
        bar = ("#" if desk.console.options.ascii_only else "█") * round(chance * 24)
        table.add_row(Text(clean(label), style=style), Text(f"{chance:7.2%}", style=style), Text(bar, style="cyan"))
    desk.show(table)
    desk.say(f"confidence {decision.confidence:.2f}, in {format_seconds(took_s)}; the conversation is unchanged")


def _quit(desk: Desk, argument: str) -> None:
    desk.is_over = True


COMMANDS = (
    Command("help", "", "this list", _help),
    Command("system", "[TEXT | off]", "show or set the system prompt", _system, ("off",)),
    Command("set", "[NAME VALUE]", "show or set sampling parameters", _set, "knob"),
    Command("think", "[on | off | show | keep | fold]", "let the model reason first; show the last reasoning", _think,
            ("on", "off", "show", "keep", "fold")),
    Command("retry", "", "answer the last question again", _retry),
    Command("edit", "", "edit the last question and ask it again", _edit),
    Command("undo", "", "forget the last question and its answer", _undo),
    Command("clear", "", "start a new conversation", _clear),
    Command("save", "[FILE]", "save the conversation as the JSON of its messages", _save, "path"),
    Command("load", "FILE", "load a saved conversation", _load, "path"),
    Command("export", "FILE", "write the conversation as Markdown", _export, "path"),
    Command("copy", "[code]", "copy the last answer, or its last code block", _copy, ("code",)),
    Command("model", "[NAME]", "show the model or switch to another", _model, "model"),
    Command("stats", "", "what this chat has used", _stats),
    Command("tokens", "[TEXT]", "count the conversation's tokens, or show those of a text", _tokens),
    Command("decide", "[QUESTION?] A | B | C", "score labels instead of generating text", _decide),
    Command("quit", "", "leave", _quit),
)  # fmt: skip
