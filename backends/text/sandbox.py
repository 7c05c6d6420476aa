"""Jinja's sandbox, made stricter: what a chat template needs, and bounds on what it can blow up."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_ITEMS: Final = 10_000
"""Items of one `range`."""
LARGEST_VALUE: Final = 2**24
"""Characters of a string or items of a list that an operation may build."""
LARGEST_INTEGER_BITS: Final = 1024
LARGEST_WIDTH: Final = 100_000
"""Widths and counts given to filters and string methods."""

_SIZED_FILTERS: Final = frozenset(
    ("batch", "center", "indent", "round", "slice", "tojson", "truncate", "wordwrap")
)
_WIDE_PERCENT: Final = re.compile(r"%[^%a-zA-Z]*(?:\d{6}|\*)")
_WIDE_FORMAT: Final = re.compile(r":[^{}]*\d{6}|\{[^{}]*\{")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment's class. Only `template.make_environment` creates one.

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


def bounded_range(*bounds: int) -> range:
    """`range` for templates."""
    items = range(*bounds)
    if len(items) > MOST_ITEMS:
        raise SecurityError(f"range of {len(items):,} items; at most {MOST_ITEMS:,} are possible")
    return items


def bounded_filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
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
