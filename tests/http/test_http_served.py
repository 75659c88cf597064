"""The doubles that HTTP tests run on are no more than the real engine and model, which are what the listener needs."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from doubles.scripted_engine import ByteTokenizer, ScriptedActions, ScriptedEngine, ScriptedModel, ScriptedTemplate
from phobos.chat.template import ChatTemplate
from phobos.engine.engine import Engine
from phobos.engine.model import Model
from phobos.engine.slots.slot_actions import SlotActions
from phobos.gguf.tokenizer import Tokenizer
from phobos.http import served

#: The protocol, the real class, the double.
TRIPLES = [
    (served.ServedEngine, Engine, ScriptedEngine),
    (served.ServedModel, Model, ScriptedModel),
    (served.ServedTokenizer, Tokenizer, ByteTokenizer),
    (served.ServedTemplate, ChatTemplate, ScriptedTemplate),
    (served.SlotActions, SlotActions, ScriptedActions),
]
#: What tests ask a double about itself; the code under test has no use for it.
OF_TESTS = {
    ScriptedEngine: {"script", "score_script", "submitted", "cancelled", "finished", "running", "die"},
    ScriptedModel: {"prepare_s", "prepared"},
    ScriptedActions: {"asked"},
}


def public_names(kind: type) -> set[str]:
    """Attributes of a class and of its instances: what stands in it, and what its methods set on `self`."""
    nodes = ast.walk(ast.parse(inspect.getsource(kind)))
    set_on_self = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    names = set(dir(kind)) | set(getattr(kind, "__dataclass_fields__", ())) | set_on_self
    return {name for name in names if not name.startswith("_")}


def members(protocol: type) -> dict[str, Any]:
    return {
        name: value
        for base in protocol.__mro__
        if base.__module__.startswith("phobos")
        for name, value in vars(base).items()
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("protocol", "real", "double"), TRIPLES, ids=lambda kind: kind.__name__)
def test_the_real_thing_and_its_double_have_what_the_listener_needs(protocol: type, real: type, double: type) -> None:
    assert members(protocol)
    for kind in (real, double):
        assert members(protocol).keys() <= public_names(kind), kind
        for name, member in members(protocol).items():
            if not inspect.isfunction(member):
                continue
            wanted, found = (list(inspect.signature(f).parameters.values()) for f in (member, getattr(kind, name)))
            for asked, given in zip(wanted, found, strict=False):
                assert asked.kind == given.kind or given.kind is given.POSITIONAL_OR_KEYWORD, (kind, name)
                assert asked.kind is asked.POSITIONAL_ONLY or asked.name == given.name, (kind, name)
                assert (asked.default is asked.empty) or given.default == asked.default, (kind, name)
            assert len(found) >= len(wanted), (kind, name)
            assert all(p.default is not p.empty for p in found[len(wanted) :]), (kind, name)


@pytest.mark.parametrize(("protocol", "real", "double"), TRIPLES, ids=lambda kind: kind.__name__)
def test_a_double_knows_nothing_the_real_thing_does_not(protocol: type, real: type, double: type) -> None:
    own = OF_TESTS.get(double, set())
    assert own <= public_names(double), "the list names what is not there"
    assert public_names(double) - own <= public_names(real) | members(protocol).keys()


def test_what_the_listener_needs_is_typed() -> None:
    """`Any` where a protocol exists once let a promised capability be asked of a model that had no such attribute."""
    for protocol, _, _ in TRIPLES:
        for name, member in members(protocol).items():
            getter = member.fget if isinstance(member, property) else member
            assert "Any" not in " ".join(getattr(getter, "__annotations__", {}).values()), (protocol, name)
