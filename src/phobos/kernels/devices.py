"""Which device runs a model: what `--device` means on this machine. Nothing of CUDA is imported unless it is wanted."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from phobos.errors import PhobosError, UsageError

if TYPE_CHECKING:
    from phobos.kernels.cuda.card import Card

logger = logging.getLogger("phobos.load")


def open_card(device: str) -> Card | None:
    """The card that `device` names; None for the processor.

    "auto" is a card where one can be used, and says in one line why not where that might surprise. `UsageError` for
    names there are not, `PhobosError` where a card was asked for and cannot be had.
    """
    if device == "cpu":
        return None
    found = re.fullmatch(r"cuda(?::(\d+))?", device)
    if device != "auto" and found is None:
        raise UsageError(f"there is no device {device!r}: use --device cpu, cuda, cuda:N (one card), or auto")
    from phobos.kernels.cuda import card as cards

    if device == "auto" and not cards.has_driver():
        return None  # nothing to tell, and the driver's bindings would be 24 MB for nothing
    if device == "auto" and not cards.is_installed():
        logger.info("the CPU computes: there is an NVIDIA driver, and to use a card %s", cards.INSTALL)
        return None
    missing = cards.missing_part()
    if missing is not None:
        if device != "auto":
            raise PhobosError(f"--device {device} is not possible: {missing} (or use --device cpu)")
        logger.info("the CPU computes: %s", missing)
        return None
    index = int(found[1] or 0) if found is not None else 0
    names = cards.list_cards()
    if index >= len(names):
        known = ", ".join(f"cuda:{i} {name}" for i, name in enumerate(names))
        raise UsageError(f"there is no card number {index}: there is {known}")
    try:
        return cards.NvidiaCard(index)
    except PhobosError as error:
        if device != "auto":
            raise
        logger.info("the CPU computes: %s", error)
        return None
