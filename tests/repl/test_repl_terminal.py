"""The chat as people use it: typed into a pseudo-terminal, over a scripted engine."""

from __future__ import annotations

import json
import re
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import PseudoTerminal

StartChat = Callable[..., PseudoTerminal]
UP, LEFT, HOME, ALT_ENTER, CTRL_C = "\x1b[A", "\x1b[D", "\x1b[H", "\x1b\r", "\x03"
PASTE = "\x1b[200~{}\x1b[201~"


def test_three_turns_with_history_and_editing(start_chat: StartChat, tmp_path: Path) -> None:
    chat = start_chat()
    shown = chat.ask("hello")
    assert "Answer 1: 1 lines, 5 letters, hello <user>" in shown
    assert re.search(r"\d+ tokens · first \d.\d\d s · [\d.]+ tok/s · 7/\d+ reused · context \d+% of 4096", shown)
    chat.ask("secund question")
    # Up brings the line back; it is edited in its middle, and sent again.
    chat.forget()
    chat.press(UP + HOME + "\x1b[C" * 3 + "\x1b[3~" + "o\r")
    shown = chat.wait(r"context \d+%")
    assert "Answer 3: 1 lines, 15 letters, second question <user><assistant><user><assistant><user>" in shown
    assert chat.quit() == 0
    # The history outlives the chat, and is the user's alone.
    history = tmp_path / "state/phobos/chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    again = start_chat()
    again.forget()
    again.press(UP + "\r")
    assert "second question <user>" in again.wait(r"context \d+%")


def test_a_pasted_block_arrives_whole(start_chat: StartChat) -> None:
    chat = start_chat()
    block = "\n".join(f"line {number} of the block" for number in range(1, 51))
    chat.forget()
    chat.press(PASTE.format(block))
    chat.wait("line 50 of the block")
    time.sleep(0.2)
    assert "Answer" not in chat.text  # nothing is sent before Enter
    chat.press("\r")
    shown = chat.wait(r"context \d+%")
    assert f"50 lines, {len(block)} letters, line 50 of the block <user>" in shown.replace("\n", " ")
    assert shown.count("Answer") >= 1 and "<assistant>" not in shown


def test_ctrl_c_ends_the_answer_and_not_the_chat(start_chat: StartChat) -> None:
    chat = start_chat()
    chat.forget()
    chat.press("go on forever\r")
    chat.wait("tick20 ")
    chat.press(CTRL_C)
    shown = chat.wait("stopped")
    assert "^C" not in shown
    # What had come is part of the conversation.
    assert "<user><assistant><user>" in chat.ask("and now?")
    assert chat.quit() == 0


def test_keys_typed_during_an_answer_wait_for_the_prompt(start_chat: StartChat) -> None:
    chat = start_chat()
    chat.forget()
    chat.press("show long code\r")
    chat.wait("line 20")
    chat.press("next one\r")
    shown = chat.wait(r"context \d+%")
    assert "next one" not in shown.partition("context")[0]
    assert "next one <user><assistant><user>" in chat.wait(r"context \d+%[\s\S]*context \d+%")


def test_ctrl_c_empties_the_line_and_twice_quits(start_chat: StartChat) -> None:
    chat = start_chat()
    for text in ("a half line", "another one"):  # with text in the line no Ctrl-C quits
        chat.forget()
        chat.press(text + CTRL_C)
        chat.wait("again quits")
    assert chat.quit(CTRL_C) == 130


def test_save_and_load(start_chat: StartChat, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    chat = start_chat("--system", "be kind")
    chat.ask("hello")
    chat.ask(f"/save {path}", "saved 3 messages")
    saved = json.loads(path.read_text())
    assert [message["role"] for message in saved] == ["system", "user", "assistant"]
    assert saved[0] == {"role": "system", "content": "be kind"}
    chat.quit()
    other = start_chat()
    other.ask(f"/load {path}", "loaded 3 messages")
    assert "Answer 2: 1 lines, 5 letters, again <system><user><assistant><user>" in other.ask("again")
    # Another's file is not overwritten without asking; the chat's own is.
    (tmp_path / "mine.json").write_text("mine")
    other.ask(f"/save {tmp_path}/mine.json", r"Replace it\?")
    other.ask("n", "was left as it is")
    assert (tmp_path / "mine.json").read_text() == "mine"
    other.ask("/save", "saved 5 messages")
    assert len(json.loads(path.read_text())) == 5


def test_retry_undo_edit_and_clear(start_chat: StartChat) -> None:
    chat = start_chat()
    assert "2 lines, 9 letters, first <user>" in chat.ask(f"the{ALT_ENTER}first")
    chat.ask("second")
    assert "Answer 2: 1 lines, 6 letters, second <user><assistant><user>" in chat.ask("/retry")
    chat.ask("/undo", "forgotten: second")
    assert "Answer 2: 1 lines, 5 letters, third <user>" in chat.ask("third")
    # /edit brings the question back into the line; the old exchange goes once the new one is sent.
    chat.ask("/edit", "> third")
    chat.forget()
    chat.press("!\r")
    assert "Answer 2: 1 lines, 6 letters, third! <user><assistant><user>" in chat.wait(r"context \d+%")
    # Given up, it leaves everything as it was.
    chat.ask("/edit", "> third!")
    chat.press(CTRL_C)
    chat.wait("again quits")
    assert "Answer 3" in chat.ask("fourth")
    chat.ask("/clear", "a new conversation")
    assert "Answer 1" in chat.ask("hello")


def test_reasoning_folds_and_is_shown_again(start_chat: StartChat) -> None:
    chat = start_chat("--think")
    shown = chat.ask("think about it")
    assert re.search(r"thought for \d\.\d\d s, 4 words \(/think show\)", shown)
    assert "first this, then that" in chat.ask("/think show", "then that")
    chat.ask("/think keep", "stays open")
    shown = chat.ask("think again")
    assert "/think show" not in shown and "thought for" in shown


def test_completion_of_commands_and_paths(start_chat: StartChat, tmp_path: Path) -> None:
    chat = start_chat()
    chat.forget()
    chat.press("/st")
    chat.wait("what this chat has used")
    chat.press("\t\r")
    chat.wait("answers +0")
    (tmp_path / "my-talks").mkdir()
    (tmp_path / "my-talks/one.json").write_text('[{"role": "user", "content": "hi"}]')
    chat.forget()
    chat.press(f"/load {tmp_path}/my-t")
    chat.wait("my-talks/")
    chat.press("\t\r")  # a folder is gone into, not loaded
    chat.wait("one.json")
    chat.press("\t\r")
    chat.wait("loaded 1 messages")


def test_failures_are_told_and_the_chat_goes_on(start_chat: StartChat) -> None:
    chat = start_chat()
    assert "the engine fell over" in chat.ask("please fail", "start again")
    assert "did you mean /stats?" in chat.ask("/stat", "did you mean")
    assert "/load FILE.json" in chat.ask("/load", "usage: /load FILE.json")
    assert "cannot read /no/such/file" in chat.ask("/load /no/such/file", "cannot read")
    # The failed question is not part of the conversation; a path is no command.
    assert "Answer 1: 1 lines, 16 letters, /etc/passwd, no? <user>" in chat.ask("/etc/passwd, no?")
    assert chat.quit("/quit\r") == 0


def test_colours_only_where_they_are_wanted(start_chat: StartChat) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*[34][0-7][;m]")
    chat = start_chat()
    chat.ask("show a document")
    assert colour.search(chat.raw)
    plain = start_chat(NO_COLOR="1")
    plain.ask("show a document")
    assert not colour.search(plain.raw)


@pytest.mark.parametrize("word", ["exit", "/bye", "Quit"])
def test_words_that_leave_other_chats_leave_this_one(start_chat: StartChat, word: str) -> None:
    chat = start_chat()
    chat.wait("> ")
    assert chat.quit(f"{word}\r") == 0


def test_a_conversation_is_kept_and_continued(start_chat: StartChat, tmp_path: Path) -> None:
    chat = start_chat()
    chat.wait("> ")
    chat.ask("remember me")
    chat.child.kill(signal.SIGKILL)  # a closed window loses nothing
    (kept,) = (tmp_path / "state" / "phobos" / "chats").glob("*.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    again = start_chat("--continue")
    again.wait("> ")
    again.ask("and me")
    assert again.quit() == 0
    (kept,) = (tmp_path / "state" / "phobos" / "chats").glob("*.json")
    asked = [message["content"] for message in json.loads(kept.read_text()) if message["role"] == "user"]
    assert asked == ["remember me", "and me"]


def test_no_conversation_is_kept_where_that_is_unwanted(start_chat: StartChat, tmp_path: Path) -> None:
    chat = start_chat("--no-history")
    chat.wait("> ")
    chat.ask("forget me")
    assert chat.quit() == 0
    assert not (tmp_path / "state" / "phobos" / "chats").exists()
