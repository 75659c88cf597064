"""Runs chat templates that may be hostile: Jinja in a sandbox with bounds on time, text and sizes.

What a template can do to a Python process, and what stops it here:
- reach Python's internals: Jinja's own sandbox, no underscore names, methods only of text, lists and mappings;
- run for ever: every loop iteration, call, filter and output looks at the clock (processor time of the thread);
- fill the memory: every text made is charged to a budget, operators and methods that can multiply a size are checked
  before they run, and nested lists are weighed before anything walks over them.

A template works on fresh copies of its data, so it may append to lists (some real templates do) without harm.
"""

from __future__ import annotations

import json
import re
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import update_wrapper
from itertools import islice
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import SandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from phobos.errors import FileError, RequestError

MAX_SOURCE_CHARS = 1 << 20
TIME_LIMIT_S = 2.0
MAX_CHARS = 32 << 20  # texts made by one rendering, all together
MAX_NODES = 100_000  # values inside one value
MAX_LENGTH = 1_000_000  # items of one list
MAX_NUMBER = 1_000_000  # number given to a function that makes something of that size


class _TooMuchError(SecurityError):
    """A bound was passed."""


class _Budget:
    """What one rendering may still use. Owned by the rendering thread."""

    def __init__(self) -> None:
        self.deadline = time.thread_time() + TIME_LIMIT_S
        self.chars = MAX_CHARS

    def tick(self) -> None:
        if time.thread_time() > self.deadline:
            raise _TooMuchError(f"it ran longer than {TIME_LIMIT_S:g} seconds")

    def charge(self, n_chars: int) -> None:
        self.chars -= n_chars
        if self.chars < 0:
            raise _TooMuchError(f"it made more than {MAX_CHARS >> 20} million characters")


_active = threading.local()


def _budget() -> _Budget:
    """The budget of the rendering at hand; a fresh one while a template is compiled."""
    budget: _Budget | None = getattr(_active, "budget", None)
    return budget or _Budget()


def _weigh(value: Any) -> Any:
    """Check that a value is no larger than its walk may be, and charge the text inside; returns the value."""
    if isinstance(value, str):
        return value
    n_nodes = n_chars = 0
    queue = [value]
    while queue:
        item = queue.pop()
        n_nodes += 1
        if n_nodes > MAX_NODES:
            raise _TooMuchError(f"it made a value of more than {MAX_NODES:,} parts")
        if isinstance(item, str):
            n_chars += len(item)
        elif isinstance(item, Mapping):
            queue.extend(item.keys())
            queue.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            queue.extend(item)
        elif isinstance(item, Namespace):
            queue.extend(item._Namespace__attrs.values())
    _budget().charge(n_chars >> 4)
    return value


def _made(value: Any) -> Any:
    """Charge a result."""
    if isinstance(value, str):
        _budget().charge(len(value))
    elif isinstance(value, list | tuple | dict):
        if len(value) > MAX_LENGTH:
            _refuse_length()
        _budget().charge(8 * len(value))
    return value


def _refuse_length() -> NoReturn:
    raise _TooMuchError(f"it made a list of more than {MAX_LENGTH:,} items")


def _check_number(*values: Any) -> None:
    for value in values:
        if isinstance(value, int) and not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise _TooMuchError(f"it gave {value} to a function")


def _check_repeat(value: Any, count: Any) -> None:
    if isinstance(value, str | list | tuple) and isinstance(count, int) and len(value) * count > MAX_LENGTH:
        raise _TooMuchError("it repeated a text or list too often")


def _check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        _budget().charge((text.count(old) if old else len(text) + 1) * (len(new) - len(old)))


def _check_join(parts: Any, separator: Any = "") -> Any:
    """Joining walks the parts twice, so they become a list first."""
    items = list(islice(parts, MAX_LENGTH)) if isinstance(parts, Iterator) else parts
    if isinstance(items, Sequence) and not isinstance(items, str):
        _weigh(items)
        n_chars = sum(len(item) for item in items if isinstance(item, str))
        _budget().charge(n_chars + len(items) * len(str(separator or "")))
    return items


_LONG_NUMBER = re.compile(r"[0-9]{5}|\*|\{[^{}]*\{")


def _check_format(text: str) -> None:
    if _LONG_NUMBER.search(text):
        raise _TooMuchError("it formatted a number to an excessive width")


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) + len(right) > MAX_LENGTH:
        _refuse_length()
    if isinstance(left, str) and isinstance(right, str):
        _budget().charge(len(left) + len(right))
    return left + right


def _multiply(left: Any, right: Any) -> Any:
    _check_repeat(left, right)
    _check_repeat(right, left)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 8192:
        raise _TooMuchError("it computed an excessive number")
    return _made(left * right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(right, 0) > 8192:
        raise _TooMuchError("it computed an excessive number")
    return left**right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_format(left)
        _weigh(right)
    return _made(left % right)


_STR_METHODS = frozenset(
    """capitalize casefold center count endswith expandtabs find index isalnum isalpha isascii isdecimal isdigit
    isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix
    removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title
    upper zfill format format_map""".split()  # noqa: SIM905
)
_LIST_METHODS = frozenset(("append", "pop", "insert", "index", "count"))
_DICT_METHODS = frozenset(("get", "items", "keys", "values", "update", "pop", "setdefault"))


def _check_method(target: Any, name: str, args: tuple[Any, ...]) -> None:
    """Check a method of a built-in value before it runs."""
    if isinstance(target, str):
        _check_number(*args)
        if name == "replace" and len(args) >= 2:
            _check_replace(target, args[0], args[1])
        elif "split" in name and len(target) > 8 * MAX_LENGTH:
            _refuse_length()
    elif isinstance(target, list | dict):
        for arg in args:
            _weigh(arg)
        if len(target) >= MAX_LENGTH:
            _refuse_length()


class _Transformer(NodeTransformer):
    """Puts the checks into a parsed template."""

    def _with_tick(self, node: Any) -> Any:
        self.generic_visit(node)
        tick = nodes.Filter(nodes.Const(True), "__tick", [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
        if getattr(node, "test", None) is not None:
            node.test = nodes.And(nodes.Filter(nodes.Const(True), "__tick", [], [], None, None), node.test)
        return node

    visit_For = visit_Macro = visit_CallBlock = _with_tick  # noqa: N815

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Const:  # noqa: N802
        return nodes.Const(node.data, lineno=node.lineno)  # so that `finalize` sees it

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "__concat", [], [], None, None, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return nodes.Filter(node, "__made", [], [], None, None, lineno=node.lineno)
        return node

    def _weighed(self, node: Any) -> Any:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load" or all(isinstance(item, nodes.Const) for item in node.items):
            return node
        return nodes.Filter(node, "__weigh", [], [], None, None, lineno=node.lineno)

    visit_List = visit_Tuple = visit_Dict = _weighed  # noqa: N815


class _Environment(SandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=[_Generation, loopcontrols],
        )
        self.binop_table |= {"+": _add, "*": _multiply, "**": _power, "%": _modulo}
        for name in ("urlize", "pprint", "wordwrap", "random", "xmlattr", "filesizeformat"):
            del self.filters[name]
        self.filters = {name: _guard_filter(name, function) for name, function in self.filters.items()}
        self.filters |= {
            "tojson": to_json,
            "from_json": _from_json,
            "fromjson": _from_json,
            "__tick": _tick,
            "__concat": _concat,
            "__weigh": _weigh,
            "__made": _made,
        }
        self.globals = {
            "range": self.globals["range"],
            "namespace": _Namespace,
            "dict": _make_dict,
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Transformer().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STR_METHODS
        if isinstance(obj, list):
            return attr in _LIST_METHODS
        if isinstance(obj, dict):
            return attr in _DICT_METHODS
        if isinstance(obj, int | float | bytes | tuple | set | frozenset | types.BuiltinFunctionType):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def format_checked(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__)
            _weigh([*args, kwargs])
            return str(_made(wrapped(*args, **kwargs)))

        return format_checked

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        _budget().tick()
        if isinstance(__obj, types.BuiltinMethodType):
            target, name = __obj.__self__, __obj.__name__
            if isinstance(target, str) and name == "join" and args:
                args = (_check_join(args[0], target), *args[1:])
            _check_method(target, name, (*args, *kwargs.values()))
        return _made(super().call(__context, __obj, *args, **kwargs))


class _Generation(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here its body is just the body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    """Jinja's, without names that begin with an underscore: those reach Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("__"):
        raise SecurityError(f"it set the name {name!r} in a namespace")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = _weigh(dict(*args, **kwargs))
    return made


def _raise_exception(message: Any = "") -> NoReturn:
    raise TemplateError(str(message)[:2000])


def _strftime_now(form: str) -> str:
    if len(form) > 200 or _LONG_NUMBER.search(form):
        raise _TooMuchError("it asked for an excessive date")
    return datetime.now().astimezone().strftime(form)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` of chat templates: no HTML escapes, characters as they are, arguments as Python's `json.dumps`."""
    if isinstance(value, Undefined):
        raise TemplateError(f"{value._undefined_name or 'a value'} is undefined and cannot be written as JSON")
    if (isinstance(indent, int) and indent > 16) or (isinstance(indent, str) and len(indent) > 16):
        raise _TooMuchError("it asked for an excessive indent")
    if isinstance(value, Iterator):  # what `map` and `select` give
        value = list(islice(value, MAX_LENGTH))
    _weigh(value)
    pair = (str(separators[0]), str(separators[1])) if separators else None
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=pair, sort_keys=sort_keys)
    if ensure_ascii:  # but for the noncharacters that break control tokens apart: those are taken out again later
        text = re.sub("[^\x00-\x7f\ufdd0-\ufdef]", lambda match: json.dumps(match[0])[1:-1], text)
    _budget().charge(len(text))
    return text


def _from_json(text: Any) -> Any:
    return _weigh(json.loads(text)) if isinstance(text, str) else text


@jinja2.pass_context
def _tick(context: Context, value: Any) -> Any:
    _budget().tick()
    return value


@jinja2.pass_context
def _finalize(context: Context, value: Any) -> Any:
    budget = _budget()
    budget.tick()
    if isinstance(value, str):
        budget.charge(len(value))
    elif not isinstance(value, int | float | Undefined) and value is not None:
        budget.charge(len(str(_weigh(value))))
    return value


def _concat(parts: list[Any]) -> str:
    texts = [part if isinstance(part, str) else str(_weigh(part)) for part in parts]
    _budget().charge(sum(map(len, texts)))
    return "".join(texts)


# Filters that look only at the top of their value, so that it needs no weighing.
_FLAT = frozenset(
    """attr batch capitalize count d default dictsort first float int abs round items last length list lower map reject
    rejectattr reverse safe select selectattr slice title trim upper""".split()  # noqa: SIM905
)


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A built-in filter with its arguments and result checked."""
    skip = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    def guarded(*args: Any, **kwargs: Any) -> Any:
        _budget().tick()
        head, value, rest = args[:skip], args[skip] if len(args) > skip else None, args[skip + 1 :]
        _check_number(*rest, *kwargs.values())
        if name not in _FLAT:
            _weigh(value)
        if name == "replace" and len(rest) >= 2:
            _check_replace(value, rest[0], rest[1])
        elif name == "join":
            value = _check_join(value, rest[0] if rest else kwargs.get("d", ""))
        elif name == "format":
            _check_format(str(value))
            _weigh([*rest, kwargs])
        elif name == "indent" and isinstance(value, str):
            width = rest[0] if rest else kwargs.get("width", 4)
            size = width if isinstance(width, int) else len(str(width))
            _budget().charge((value.count("\n") + 1) * max(size, 0))
        elif name == "list" and isinstance(value, str) and len(value) > MAX_LENGTH:
            _refuse_length()
        return _made(function(*head, value, *rest, **kwargs))

    update_wrapper(guarded, function)  # carries Jinja's marks, which are attributes
    return guarded


_environment: _Environment | None = None
_environment_lock = threading.Lock()


def _get_environment() -> _Environment:
    global _environment  # noqa: PLW0603 - building it takes milliseconds and it is immutable
    with _environment_lock:
        if _environment is None:
            _environment = _Environment()
        return _environment


class SandboxedTemplate:
    """A compiled template; may be rendered by several threads at once."""

    def __init__(self, source: str) -> None:
        """Raises `FileError` where the source is not a template."""
        if len(source) > MAX_SOURCE_CHARS:
            raise FileError("the model's chat template is longer than 1 MiB: give another with --chat-template")
        try:
            self._template = _get_environment().from_string(source)
        except TemplateSyntaxError as error:
            raise FileError(
                f"the chat template cannot be read (line {error.lineno}: {error.message}): "
                "give another with --chat-template"
            ) from None
        except (TemplateError, RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
            reason = str(error) or type(error).__name__
            raise FileError(f"the chat template cannot be read ({reason}): give another with --chat-template") from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. `variables` are handed over, and the template may change them. Raises `RequestError` with the
        template's own words where it refuses, fails or passes a bound."""
        _active.budget = _Budget()
        try:
            return "".join(self._template.generate(dict(variables)))
        except _TooMuchError as error:
            reason = f"the model's chat template was stopped: {error}"
        except TemplateError as error:
            reason = f"the model's chat template refuses this conversation: {error.message or type(error).__name__}"
        except (RecursionError, MemoryError):
            reason = "the model's chat template was stopped: it nested too deeply or needed too much memory"
        except Exception as error:  # a template can raise whatever its expressions can
            reason = f"the model's chat template fails on this conversation: {str(error) or type(error).__name__}"
        finally:
            _active.budget = None
        raise RequestError(reason, code="invalid_message", param="messages")
