"""The keyboard while an answer comes, and copying to the clipboard: the little that differs between systems.

While the model answers, keys are not echoed into its text but kept for the next prompt, and Ctrl-C is a wish that the
answer loop asks for, never an exception in the middle of a frame.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import IO

CLIPBOARD_PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
    ("", ("clip.exe",)),
)


class Interrupt:
    """Whether Ctrl-C was pressed. Owner: the main thread; the signal handler sets it."""

    def __init__(self) -> None:
        self.pressed = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Note the wish."""
        self.pressed = True


@contextlib.contextmanager
def answering() -> Iterator[Interrupt]:
    """Hold echo and the exception of Ctrl-C back for a while; the terminal is as before afterwards."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt.on_signal)
    try:
        with keys_kept():
            yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def keys_kept() -> Iterator[None]:
    """Echo no keys for a while, but keep them for the prompt; without a terminal nothing happens."""
    try:
        import termios
    except ImportError:  # Windows echoes nothing while nobody reads
        yield
        return
    try:
        descriptor = sys.stdin.fileno()
        saved = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):
        yield
        return
    quiet = [*saved]
    quiet[0] = saved[0] & ~termios.ICRNL  # an Enter typed meanwhile stays an Enter for the prompt
    quiet[3] = saved[3] & ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, saved)


def copy_text(text: str, terminal: IO[str]) -> str:
    """Put a text on the clipboard and tell by what: a program of this machine, else the terminal itself (OSC 52),
    which reaches the user's own machine over ssh too."""
    over_ssh = bool(os.environ.get("SSH_CONNECTION"))
    for variable, command in CLIPBOARD_PROGRAMS:
        if over_ssh or (variable and not os.environ.get(variable)) or shutil.which(command[0]) is None:
            continue
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            # The copiers stay behind to serve the clipboard: they must not hold our output open.
            quiet = subprocess.DEVNULL
            subprocess.run(command, input=text.encode(), stdout=quiet, stderr=quiet, timeout=5, check=True)
            return command[0]
    coded = base64.b64encode(text.encode()).decode()
    terminal.write(f"\x1b]52;c;{coded}\x07")
    terminal.flush()
    return "the terminal"
