"""Templates of real models give in our sandbox exactly what transformers makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template
from transformers.utils.chat_template_utils import render_jinja_template

import llama_tree
from hearth.backends.errors import TemplateError
from hearth.backends.text.template import compile_template, render

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather <of> a city\'s "day" & night',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Näme ☃"},
                    "days": {"type": "integer", "enum": [1, 2]},
                },
                "required": ["city"],
            },
        },
    }
]
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}


def called(arguments: object) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdef012", "type": "function", "function": function}],
    }


ASKED = {"role": "user", "content": "Weather?"}
TOLD = {
    "role": "tool",
    "tool_call_id": "abcdef012",
    "name": "get_weather",
    "content": '{"t": 3}',
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": "Hello"}],
    "a system prompt, odd characters, white space": [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": "Hi <b>&'\" ☃ {{ x }}"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "  bye  "},
    ],
    "thoughts": [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A", "reasoning_content": "because"},
        {"role": "user", "content": "R"},
    ],
    "thoughts before a call": [
        ASKED,
        {**called({"city": "Köln"}), "reasoning_content": "It asks for the weather."},
        TOLD,
    ],
    "thoughts by another name": [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A", "thinking": "because"},
    ],
    "thoughts in the text": [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA"},
        {"role": "user", "content": "R"},
    ],
    "a call with an object": [
        {"role": "system", "content": "S"},
        ASKED,
        called({"city": "Köln", "days": 1}),
        TOLD,
        {"role": "assistant", "content": "3 degrees"},
        {"role": "user", "content": "Thanks"},
    ],
    "a call with a string": [ASKED, called('{"city": "Köln"}'), TOLD],
    "an answer at the end": [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"},
    ],
    "parts": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        }
    ],
}
ENDS: tuple[tuple[bool, dict[str, Any]], ...] = (
    (True, {}),
    (False, {}),
    (True, {"enable_thinking": False}),
)
"""Whether the answer's beginning is added, and further variables."""
Case = tuple[list[dict[str, Any]], list[dict[str, Any]] | None, tuple[bool, dict[str, Any]]]
CASES: list[Case] = list(itertools.product(CONVERSATIONS.values(), (None, TOOLS), ENDS))


class Fixed(datetime):
    """A clock that stands still, for templates that print the date."""

    @classmethod
    def now(cls, tz: Any = None) -> Fixed:
        return cls(2031, 2, 3, 4, 5, 6)


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hearth.backends.text.sandbox.datetime", Fixed)
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Fixed)


def outcome(work: Callable[[], str]) -> str | None:
    """What a template makes; None where it refuses."""
    try:
        return work()
    except Exception:  # noqa: BLE001 - transformers lets through whatever a template raises
        return None


def in_transformers(source: str, case: Case) -> str | None:
    messages, tools, (begins, extra) = case
    return outcome(
        lambda: render_jinja_template(
            [messages],
            tools=tools,
            chat_template=source,
            add_generation_prompt=begins,
            **SPECIALS,
            **extra,
        )[0][0]
    )


def here(template: Template, case: Case) -> str | None:
    messages, tools, (begins, extra) = case
    return outcome(
        lambda: render(
            template, messages, tools=tools, add_generation_prompt=begins, extra=extra, **SPECIALS
        )
    )


def assert_alike(source: str) -> None:
    template = compile_template(source)
    for case in CASES:
        assert here(template, case) == in_transformers(source, case), case


@pytest.mark.parametrize("path", llama_tree.files("templates/*.jinja"))
def test_a_models_template_renders_as_in_transformers(path: Path) -> None:
    assert_alike(path.read_text(encoding="utf-8"))


def test_at_least_forty_templates_render() -> None:
    tree = llama_tree.vocabularies.found_tree()
    if tree is None:
        pytest.skip(llama_tree.MISSING)
    sources = [path.read_text(encoding="utf-8") for path in tree.glob("templates/*.jinja")]
    rendered = [here(compile_template(source), CASES[0]) for source in sources]
    assert sum(text is not None for text in rendered) >= 40


SMALL = {
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|"
    "{% endfor %}",
    "generation with trims": "{%- for m in messages -%}  {%- generation -%} {{ m.content }} "
    "{%- endgeneration -%} {%- endfor -%}",
    "set inside of generation": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}"
    "{% endgeneration %}{{ x }}",
    "generation in a macro": "{% macro said(m) %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% endmacro %}{% for m in messages %}{{ said(m) }}{% endfor %}",
    "the date": "{{ strftime_now('%d %B %Y %H:%M') }}",
    "json": "{{ tools | tojson }}|{{ tools | tojson(indent=4) }}",
    "all messages": "{{ messages | tojson }}",
    "json of other forms": "{{ tools | tojson(separators=(',', ':'), sort_keys=true) }}"
    "{{ tools | tojson(ensure_ascii=true) }}",
    "break and continue": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "white space": "  {% if true %}\n    a\n  {% endif %}\n\tb\n",
    "namespaces": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}",
    "dictionaries": "{{ dict(a=1) | tojson }}{% for k, v in tools[0].function | items %}{{ k }}"
    "{% endfor %}",
    "methods": "{{ messages[0].content.strip().upper() }}{{ messages[0].get('name', 'none') }}",
    "nothing": "{{ missing }}{{ documents is none }}{{ tools is none }}",
    "names": "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}",
    "refusal": "{{ raise_exception('no') }}",
    "what is missing of what is missing": "{{ missing.more }}",
    "an append": "{% set _ = messages.append(1) %}",
}


@pytest.mark.parametrize("source", SMALL.values(), ids=SMALL)
def test_what_templates_use_means_the_same(source: str) -> None:
    assert_alike(source)


def test_a_refusal_says_what_the_template_says() -> None:
    with pytest.raises(TemplateError, match="no"):
        render(compile_template(SMALL["refusal"]), CONVERSATIONS["one question"])
