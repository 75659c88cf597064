"""Which device runs a model: what `--device` means on this machine. Nothing of CUDA is imported unless it is wanted."""

from __future__ import annotations

import contextlib
import logging
import re
from typing import TYPE_CHECKING

from phobos.errors import PhobosError, UsageError
from phobos.settings import EngineSettings

if TYPE_CHECKING:
    from phobos.kernels.cuda.card import Card

logger = logging.getLogger("phobos.load")


def open_cards(settings: EngineSettings) -> tuple[Card, ...]:
    """The cards that `--device` names, in its order; none for the processor.

    "auto" is the first card where one can be used, and says in one line why not where that might surprise. `UsageError`
    for names there are not, `PhobosError` where a card was asked for, or layers for one, and it cannot be had.
    """
    device, n_layers = settings.device, settings.gpu_layers
    found = re.fullmatch(r"cuda(?::(\d+(?:,\d+)*))?", device)
    if device not in ("auto", "cpu") and found is None:
        raise UsageError(
            f"there is no device {device!r}: use --device cpu, cuda, cuda:N (one card), cuda:N,M (several), or auto"
        )
    if device == "cpu" and n_layers:
        raise UsageError(f"--gpu-layers {n_layers} needs a card: leave it out, or use --device cuda")
    if device == "cpu" or n_layers == 0:
        return ()
    why = _find_missing(device)
    if why is None:
        numbers = [int(number) for number in (found[1] or "0").split(",")] if found is not None else [0]
        try:
            return _open(numbers)
        except UsageError:
            raise
        except PhobosError as error:
            if device != "auto":
                raise
            why = str(error)
    if device != "auto":
        raise PhobosError(f"--device {device} is not possible: {why} (or use --device cpu)")
    if n_layers:
        raise PhobosError(f"--gpu-layers {n_layers} is not possible: {why or 'there is no card'} (or leave it out)")
    if why:
        logger.info("the CPU computes: %s", why)
    return ()


def _find_missing(device: str) -> str | None:
    """Why there is no card to use, "" where that needs no telling; None where there is one."""
    from phobos.kernels.cuda import card as cards

    if device == "auto" and not cards.has_driver():
        return ""  # nothing to tell, and the driver's bindings would be 24 MB for nothing
    if device == "auto" and not cards.is_installed():
        return f"there is an NVIDIA driver, and to use a card {cards.INSTALL}"
    return cards.missing_part()


def _open(numbers: list[int]) -> tuple[Card, ...]:
    from phobos.kernels.cuda import card as cards

    names = cards.list_cards()
    for number in numbers:
        if number >= len(names):
            known = ", ".join(f"cuda:{i} {name}" for i, name in enumerate(names))
            raise UsageError(f"there is no card number {number}: there is {known}")
        if numbers.count(number) > 1:
            raise UsageError(f"--device names card number {number} twice: name each card once")
    with contextlib.ExitStack() as stack:
        opened = []
        for number in numbers:
            opened.append(cards.NvidiaCard(number))
            stack.callback(opened[-1].close)
        stack.pop_all()
    return tuple(opened)
