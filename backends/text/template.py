"""Chat templates, which came with a model and are not trusted: the one sandboxed Jinja environment.

Nothing else in Hearth makes a Jinja environment. What the sandbox cannot bound (time, memory, the
interpreter itself) is bounded by the process around it: `renderer` and `render_helper`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateSyntaxError, UndefinedError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from hearth.backends.errors import TemplateError
from hearth.backends.text.sandbox import TemplateSandbox, bounded_filter, bounded_range

LARGEST_SOURCE_CHARS: Final = 256 * 1024
MOST_ADDED_BYTES: Final = 1024 * 1024
"""What a template may produce beyond the conversation itself."""
_LONGEST_MESSAGE_CHARS: Final = 300
_LONGEST_DATE_FORMAT_CHARS: Final = 200
_HINT: Final = "Give another template in the model's settings, or use --raw to go without one."
_OTHER_FILES: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class _Refusal(Exception):
    """The template itself called `raise_exception`."""


class _GenerationTag(Extension):
    """`{% generation %}` to `{% endgeneration %}` marks a model's own text for training: kept."""

    tags = {"generation"}  # noqa: RUF012  (the type that Jinja declares)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


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
        environment.filters[name] = bounded_filter(name, original)
    del environment.globals["lipsum"]
    environment.globals["range"] = bounded_range
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def compile_template(source: str) -> Template:
    """A template that can be rendered many times.

    Raises:
        TemplateError: the source is too long, has a syntax error, or wants other files.
    """
    if len(source) > LARGEST_SOURCE_CHARS:
        raise TemplateError(
            f"The chat template has {len(source):,} characters; "
            f"at most {LARGEST_SOURCE_CHARS:,} are possible.",
            _HINT,
            reason="source",
        )
    environment = make_environment()
    try:
        tree = environment.parse(source)
        other = next(tree.find_all(_OTHER_FILES), None)
        if other is not None:
            raise SecurityError(f"{type(other).__name__.lower()} of another file")
        return environment.from_string(source)
    except Exception as error:
        raise _explained(error) from error


def render_compiled(
    template: Template,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    bos_token: str,
    eos_token: str,
    extra: Mapping[str, Any],
) -> str:
    """The prompt that `template` makes; arguments and errors as for `render`."""
    context = {
        "tools": None,
        "documents": None,
        **extra,
        "messages": [dict(message) for message in messages],
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    parts: list[str] = []
    room = MOST_ADDED_BYTES + sum(_text_bytes(value) for value in (messages, extra))
    try:
        for part in template.generate(context):
            room -= len(part.encode())
            if room < 0:
                raise TemplateError(
                    "The chat template produced more than 1 MiB beyond the conversation.",
                    _HINT,
                    reason="output",
                )
            parts.append(part)
    except Exception as error:
        raise _explained(error) from error
    return "".join(parts)


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    extra: Mapping[str, Any] | None = None,
) -> str:
    """The prompt that the Jinja source `template` makes of `messages`, in this process.

    Only for templates that are trusted, and for the helper process: `Renderer` is the bounded way.

    Args:
        messages: "role", "content" and whatever else the template reads.
        extra: further variables, e.g. {"enable_thinking": False}.

    Raises:
        TemplateError: `reason` in `data` is "source", "syntax", "forbidden", "undefined", "refused"
            (the template's own `raise_exception`), "output" (more than 1 MiB), or "failed".
    """
    return render_compiled(
        compile_template(template),
        messages,
        add_generation_prompt=add_generation_prompt,
        bos_token=bos_token,
        eos_token=eos_token,
        extra=extra or {},
    )


def _explained(error: Exception) -> TemplateError:
    """What went wrong, in words for people."""
    if isinstance(error, TemplateError):
        return error
    reason = "failed"
    if isinstance(error, _Refusal):
        reason, what = "refused", f"refuses this conversation: {error}"
    elif isinstance(error, TemplateSyntaxError):
        reason, what = "syntax", f"has a syntax error in line {error.lineno}: {error.message}"
    elif isinstance(error, SecurityError):
        reason, what = "forbidden", f"tried something that is forbidden: {error}"
    elif isinstance(error, UndefinedError):
        reason, what = "undefined", f"uses something that does not exist: {error}"
    elif isinstance(error, UnicodeEncodeError):
        what = "produced text that is not valid Unicode"
    elif isinstance(error, RecursionError):
        what = "is nested too deeply"
    elif isinstance(error, MemoryError):
        what = "needs too much memory"
    else:
        what = f"failed: {type(error).__name__}: {error}"
    if len(what) > _LONGEST_MESSAGE_CHARS:
        what = what[:_LONGEST_MESSAGE_CHARS] + "…"
    return TemplateError(f"The chat template {what.rstrip('.')}.", _HINT, reason=reason)


def _text_bytes(value: Any) -> int:
    """Bytes of all text in a JSON value."""
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, Mapping):
        return sum(_text_bytes(item) for pair in value.items() for item in pair)
    if isinstance(value, Sequence):
        return sum(map(_text_bytes, value))
    return 0


def _raise_exception(message: object = "no reason given") -> NoReturn:
    raise _Refusal(str(message))


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
