"""What a flag of `phobos-cli` is: an option with a group for the help, an environment variable, a name in a file.

Every long flag `--ctx-size` is also `PHOBOS_CTX_SIZE` in the environment and `ctx-size` in the TOML file named by
`--config`. The command line wins over the environment, that over the file. Command lines are read by Click; this
module imports nothing heavier.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from phobos import sizes
from phobos.commands.parsing.refusals import CONFIG
from phobos.sampling_fields import SamplingField

#: What is read from the environment beside the flags' own variables.
FURTHER_VARIABLES = (
    "PHOBOS_MODELS", "PHOBOS_DEBUG", "PHOBOS_KERNEL_CACHE_DIR", "PHOBOS_CPU_PATH", "PHOBOS_VRAM", "PHOBOS_PASS_REPORT",
    "PHOBOS_GUARD_PAGES", "PHOBOS_READ_AHEAD", "PHOBOS_TEST_MODELS", "PHOBOS_REFEREE_PYTHON", "PHOBOS_SHARED",
)  # fmt: skip
PREFIX = "PHOBOS_"
CERTAINLY_MEANT = 0.85  # how alike a misspelt variable and a known one are behind the prefix

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


class Flag(click.Option):
    """An option that knows its group and, in words, what happens without it."""

    def __init__(self, *args: Any, group: str, without: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.without = without

    @property
    def long_names(self) -> list[str]:
        """Its names without dashes, the first the one documented."""
        return [opt[2:] for opt in self.opts if opt.startswith("--")]

    def default_text(self) -> str | None:
        """What holds without the flag, in words; nothing where that goes without saying."""
        if self.without is not None:
            return self.without
        if self.secondary_opts:
            return "on" if self.default is True else None
        if self.is_flag or self.multiple or not isinstance(self.default, str | int | float):
            return None
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


class Size(click.ParamType[int]):
    """A number of bytes: `4194304`, `4M`, `4MiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes, or Click's complaint."""
        if isinstance(value, int):
            return value
        try:
            return sizes.parse_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


AUTO = -1  # of `Layers`


class Layers(click.ParamType[int]):
    """A number of layers, or "auto", which is `AUTO`."""

    name = "layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or Click's complaint."""
        text = str(value)
        if text == "auto" or value == AUTO:
            return AUTO
        if not text.isdecimal():
            self.fail(f"{text!r} is not a number of layers: give a number from 0, or auto", param, ctx)
        return int(text)


class SamplingValue(click.ParamType[float]):
    """A value of a sampling field."""

    name = "number"

    def __init__(self, field: SamplingField) -> None:
        self._field = field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or Click's complaint."""
        try:
            return self._field.parse(str(value))
        except ValueError as error:
            self.fail(f"it {error}", param, ctx)


Decorator = Callable[[Any], Any]


def flag(*names: str, group: str, env: str | None = None, **kwargs: Any) -> Decorator:
    """A decorator that adds one flag; `env` replaces the environment variable made from the first long name."""
    long_name = next(n for n in names if n.startswith("--")).split("/")[0]
    variable = env or PREFIX + long_name[2:].replace("-", "_").upper()
    return click.option(*names, cls=Flag, group=group, envvar=variable, **kwargs)


def names_of(group: Sequence[Decorator]) -> list[str]:
    """The names of a group's parameters, as a command's function gets them."""
    command = click.command()(with_flags(group)(lambda **values: values))
    return [str(parameter.name) for parameter in command.params]


def with_flags(*groups: Sequence[Decorator]) -> Callable[[AnyCallable], AnyCallable]:
    """A decorator that adds groups of flags, the first group first in the help."""

    def decorate(function: AnyCallable) -> AnyCallable:
        for group in reversed(groups):
            for decorator in reversed(group):
                function = decorator(function)
        return function

    return decorate


def read_config(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """The callback of `--config`: make the file's values the defaults of this command's flags."""
    if value is None or ctx.resilient_parsing:
        return value
    try:
        with value.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise click.UsageError(f"cannot read the configuration {value}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{value} is not a valid TOML file: {error}") from error
    known = {name: option for option in known_flags(ctx) for name in option.long_names}
    denied = {opt[2:]: option for option in known.values() for opt in option.secondary_opts}
    mine = {option.name for option in ctx.command.params}
    defaults: dict[str, Any] = {}
    for key, entry in document.items():
        name = key.replace("_", "-")
        option = known.get(name) or denied.get(name)
        if option is None or option.name is None:
            raise click.UsageError(f"{value} sets {key!r}, which is not a flag{_did_you_mean(name, [*known, *denied])}")
        if option.name in mine:
            defaults[option.name] = _config_value(option, entry, negate=name in denied and name not in known)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    ctx.meta[CONFIG] = value
    return value


def check_environment(ctx: click.Context) -> None:
    """Refuse a variable that is no setting but nearly one: a misspelt flag is refused too. Others may be anybody's."""
    given = [name for name in os.environ if name.startswith(PREFIX) and name not in FURTHER_VARIABLES]
    if not given:
        return
    known = {*FURTHER_VARIABLES, *(str(option.envvar) for option in known_flags(ctx))}
    for name in given:
        rests = [variable.removeprefix(PREFIX) for variable in known]
        close = difflib.get_close_matches(name.removeprefix(PREFIX), rests, n=1, cutoff=CERTAINLY_MEANT)
        if name not in known and close:
            raise click.UsageError(
                f"the environment sets {name}, which is not a setting: did you mean {PREFIX}{close[0]}?"
            )


def _config_value(option: Flag, entry: Any, *, negate: bool) -> Any:
    if negate:
        return not entry
    if option.multiple and not isinstance(entry, list):
        return [entry]
    return str(entry) if isinstance(entry, float) and not isinstance(option.type, click.FloatRange) else entry


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def known_flags(ctx: click.Context) -> list[Flag]:
    """Every flag of this command and of all the others, since one file serves them all."""
    root = ctx.find_root().command
    commands = [ctx.command]
    if isinstance(root, click.Group):
        loaded = [root.get_command(ctx, name) for name in [*root.list_commands(ctx), "ask"]]
        commands += [command for command in loaded if command is not None]
    return [option for command in commands for option in command.params if isinstance(option, Flag)]
