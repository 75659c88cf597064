"""Hostile and odd templates: nothing of Python is reached, time and memory are bounded, and what real templates use
works."""

import time
from typing import Any

import pytest

from phobos.chat.template_sandbox import MAX_CHARS, SandboxedTemplate
from phobos.errors import FileError, RequestError


def render(source: str, **variables: Any) -> str:
    return SandboxedTemplate(source).render({"messages": [{"role": "user", "content": "Hi"}], **variables})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n }}",
        "{{ namespace(**{'__init__': 1}) }}",
        "{% macro m() %}{% endmacro %}{{ m.__call__.__globals__ }}",
        "{{ messages.clear() }}",
        "{{ (1).to_bytes(8, 'big') }}",
        "{{ 'a'.encode() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.getcwd() }}",
        "{{ lipsum(n=9) }}",
    ],
)
def test_python_is_out_of_reach(source: str) -> None:
    with pytest.raises(RequestError, match="chat template") as caught:
        render(source)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "source", ["{{ raise_exception.__globals__ }}", "{{ dict.__class__ }}", "{{ ''|attr('__class__') }}"]
)
def test_internals_are_undefined(source: str) -> None:
    assert render(source) == ""


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set x = [1] * 99999 %}{% set y = [1] * 99999 %}{% for i in range(99999) %}{{ x == y }}{% endfor %}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_time_is_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phobos.chat.template_sandbox.TIME_LIMIT_S", 0.2)
    before = time.thread_time()
    with pytest.raises(RequestError, match="longer than"):
        render(source)
    assert time.thread_time() - before < 1.0


HOARDING = "{{% for i in range(9999) %}}{{% set _ = l.append({0}) %}}{{% endfor %}}"
DOUBLING = "{{% set n = namespace(x={0}) %}}{{% for i in range(60) %}}{1}{{% endfor %}}{{{{ n.x }}}}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}",
        "{{ [0] * 10**10 }}",
        "{{ 2**100000000 }}",
        "{{ 'a'.ljust(10**10) }}",
        "{{ 'a'|center(10**10) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%10000000000d'|format(1) }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10000000000) }}",
        "{{ 'a'|indent(10**9) }}",
        "{{ [1]|batch(10**9, 'x')|list }}",
        "{{ messages|tojson(indent=10**9) }}",
        "{{ strftime_now('%9999999999d') }}",
        "{% set x = 'a' * 900000 %}{{ x|replace('', x) }}",
        "{% set x = 'a' * 900000 %}{{ x.join([x] * 900) }}",
        "{% for a in range(9999) %}{% for b in range(9999) %}" + "z" * 100000 + "{% endfor %}{% endfor %}",
        DOUBLING.format("'aaaa'", "{% set n.x = n.x ~ n.x %}"),
        DOUBLING.format("'aaaa'", "{% set n.x = n.x + n.x %}"),
        DOUBLING.format("'aaaa'", "{% set n.x = n.x|replace('a', 'aa') %}"),
        DOUBLING.format("'aaaa'", "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}"),
        DOUBLING.format("[1]", "{% set n.x = n.x + n.x %}"),
        DOUBLING.format("[1]", "{% set n.x = [n.x, n.x] %}"),
        DOUBLING.format("[1]", "{% set n.x = (n.x, n.x) %}"),
        DOUBLING.format("[1]", "{% set n.x = [n.x] * 2 %}"),
        DOUBLING.format("{}", "{% set n.x = {'a': n.x, 'b': n.x} %}"),
        DOUBLING.format("{}", "{% set n.x = dict(a=n.x, b=n.x) %}"),
        DOUBLING.format(
            "[]", "{% set y = [] %}{% set _ = y.append(n.x) %}{% set _ = y.append(n.x) %}{% set n.x = y %}"
        ),
        DOUBLING.format("3", "{% set n.x = n.x * n.x %}"),
        "{% set y = [] %}{% set _ = y.append(y) %}{{ y|tojson }}",
        "{% set x = 'a' * 999999 %}{% set l = [] %}" + HOARDING.format("x[1:]"),
        "{% set x = 'a' * 999999 %}{% set l = [] %}" + HOARDING.format("x.upper()"),
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ('[' * 100000)|from_json }}",
    ],
)
def test_memory_is_bounded(source: str) -> None:
    with pytest.raises(RequestError, match="was stopped"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ x",
        "{% for x in y %}",
        "{{ x|no_such_filter }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
        "x" * (2 << 20),
    ],
    ids=["if", "open", "for", "filter", "deep", "blocks", "long"],
)
def test_what_is_no_template_is_a_file_error(source: str) -> None:
    with pytest.raises(FileError, match="--chat-template"):
        SandboxedTemplate(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'b': 'ü<', 'a': [1, 2.5, none, true]}|tojson }}", '{"b": "ü<", "a": [1, 2.5, null, true]}'),
        ("{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ 'ü😀'|tojson(ensure_ascii=true) }}", '"\\u00fc\\ud83d\\ude00"'),
        ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ messages|map(attribute='role')|tojson }}", '["user"]'),
        ("{{ ('{\"a\": 1}'|from_json).a }}", "1"),
        (
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
            "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "013",
        ),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "aHib"),
        ("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\n", "x\n"),
        ("{% set n = namespace(x=0) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "3"),
        ("{% set l = [] %}{% set _ = l.append(1) %}{{ l }}{{ l.pop(0) }}", "[1]1"),
        ("{{ 'a</think>b'.split('</think>')[-1] ~ 1 ~ none }}", "b1None"),
        ("{{ messages[::-1]|length }}{{ 'abc'[1:] }}{{ '%s-%d' % ('x', 3) }}{{ '{}!'.format('y') }}", "1bcx-3y!"),
        ("{{ undefined_thing }}{{ undefined_thing is defined }}", "False"),
        ("{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}", "a2Falseb1True"),
        ("{% macro f(x, y='d') %}{{ x }}{{ y }}{{ caller() }}{% endmacro %}{% call f(1) %}c{% endcall %}", "1dc"),
        ("{{ 12345678901234|string }}{{ 3 ** 5 }}{{ 7 // 2 }}", "1234567890123424 33".replace(" ", "")),
    ],
)
def test_what_real_templates_use(source: str, text: str) -> None:
    assert render(source) == text


def test_todays_date() -> None:
    assert render("{{ strftime_now('%Y-%m-%d') }}").count("-") == 2


def test_a_refusal_carries_the_templates_words() -> None:
    with pytest.raises(RequestError, match="Roles must alternate!") as caught:
        render("{{ raise_exception('Roles must alternate!') }}")
    assert (caught.value.code, caught.value.param) == ("invalid_message", "messages")


def test_variables_are_only_the_renderings_own() -> None:
    template = SandboxedTemplate("{% set _ = messages[0].update({'content': 'changed'}) %}{{ messages[0].content }}")
    assert template.render({"messages": [{"content": "a"}]}) == "changed"
    assert MAX_CHARS > 4 << 20  # a whole request body may pass through a few copies
