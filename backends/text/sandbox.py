"""The one sandboxed Jinja environment, for chat templates, which came with a model.

Jinja's sandbox with what templates need, and bounds on what they can blow up. Nothing else in
Hearth makes a Jinja environment.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_ITEMS: Final = 10_000
"""Items of one `range`."""
LARGEST_VALUE: Final = 2**24
"""Characters of a string or items of a list that an operation may build."""
LARGEST_INTEGER_BITS: Final = 1024
LARGEST_WIDTH: Final = 100_000
"""Widths and counts given to filters and string methods."""
_LONGEST_DATE_FORMAT_CHARS: Final = 200

_SIZED_FILTERS: Final = frozenset(
    ("batch", "center", "indent", "round", "slice", "tojson", "truncate", "wordwrap")
)
_WIDE_PERCENT: Final = re.compile(r"%[^%a-zA-Z]*(?:\d{6}|\*)")
_WIDE_FORMAT: Final = re.compile(r":[^{}]*\d{6}|\{[^{}]*\{")


class Refusal(Exception):
    """The template itself called `raise_exception`."""


class _GenerationTag(Extension):
    """`{% generation %}` to `{% endgeneration %}` marks a model's own text for training: kept."""

    tags = {"generation"}  # noqa: RUF012  (the type that Jinja declares)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment's class. Only `make_environment` creates one.

    Unsafe attributes raise at once (Jinja gives an undefined value, which prints as nothing), and
    operators, filters and string methods refuse to build very large values.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"the attribute {attribute!r} of {type(obj).__name__} is forbidden")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _CHECKS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    # Positional-only under mangled names, as in Jinja: a template may pass any keyword.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if isinstance(getattr(__obj, "__self__", None), str | bytes | int):
            _check_widths(getattr(__obj, "__name__", "method"), args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        safe = super().wrap_str_format(value)
        if safe is not None and _WIDE_FORMAT.search(
            value.__self__.replace("{{", "").replace("}}", "")
        ):
            raise SecurityError("a format string asks for a very large or computed width")
        return safe


def make_environment() -> TemplateSandbox:
    """The environment that chat templates are written for (Hugging Face's), in the sandbox."""
    environment = TemplateSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _GenerationTag],
        cache_size=0,
    )
    environment.filters["tojson"] = _tojson
    for name, original in list(environment.filters.items()):
        environment.filters[name] = _bounded_filter(name, original)
    del environment.globals["lipsum"]
    environment.globals["range"] = _bounded_range
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: object = "no reason given") -> NoReturn:
    raise Refusal(str(message))


def _strftime_now(date_format: str) -> str:
    if len(date_format) > _LONGEST_DATE_FORMAT_CHARS:
        raise SecurityError("a very long date format")
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


def _bounded_range(*bounds: int) -> range:
    """`range` for templates."""
    items = range(*bounds)
    if len(items) > MOST_ITEMS:
        raise SecurityError(f"range of {len(items):,} items; at most {MOST_ITEMS:,} are possible")
    return items


def _bounded_filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original` (Jinja's filter `name`) with bounds on its widths and its result."""

    # `wraps` copies the mark that tells Jinja to pass its context or environment first.
    @functools.wraps(original)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        if name in _SIZED_FILTERS:
            _check_widths(name, args, kwargs)
        elif name == "format" and args:
            _check_modulo(args[0], None)
        result = original(*args, **kwargs)
        if isinstance(result, str | list | tuple | dict):
            _check_size(len(result))
        return result

    return bounded


def _check_widths(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > LARGEST_WIDTH:
            raise SecurityError(f"{name} with a number over {LARGEST_WIDTH:,}")


def _check_size(size: int) -> None:
    if size > LARGEST_VALUE:
        raise SecurityError(f"a value of {size:,} characters or items")


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, str | bytes | list | tuple) and isinstance(right, type(left)):
        _check_size(len(left) + len(right))


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | bytes | list | tuple) and isinstance(times, int):
            _check_size(len(value) * max(0, times))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))


def _check_bits(bits: int) -> None:
    if bits > LARGEST_INTEGER_BITS:
        raise SecurityError(f"a whole number of more than {LARGEST_INTEGER_BITS:,} bits")


def _check_modulo(left: Any, right: Any) -> None:
    del right  # of interest only to the other operators
    if isinstance(left, str) and _WIDE_PERCENT.search(left):
        raise SecurityError("a format string asks for a very large or computed width")


_CHECKS: Final[Mapping[str, Callable[[Any, Any], None]]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_modulo,
}
