"""The sandboxed Jinja environment for chat templates, which come with a model and are untrusted.

It is Jinja's sandbox plus the functions that templates need. Time and memory are bounded by the
helper process (`backends.machine.helper`). Nothing else in Hearth creates a Jinja environment.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Refusal(Exception):
    """The template itself called `raise_exception`."""


class _GenerationTag(Extension):
    """`{% generation %}` to `{% endgeneration %}` marks a model's text for training: kept as is."""

    tags = {"generation"}  # noqa: RUF012  (the type that Jinja declares)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The class of the environment, created only by `make_environment`.

    Unsafe attributes raise at once (in Jinja they give an undefined value, which prints as "").
    """

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"the attribute {attribute!r} of {type(obj).__name__} is forbidden")


def make_environment() -> TemplateSandbox:
    """The environment that chat templates are written for (Hugging Face's), in the sandbox."""
    environment = TemplateSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _GenerationTag],
        cache_size=0,
    )
    environment.filters["tojson"] = _tojson
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: object = "no reason given") -> NoReturn:
    raise Refusal(str(message))


def _strftime_now(date_format: str) -> str:
    return datetime.now().strftime(date_format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: not HTML-escaped, keys in their own order."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
