"""Compiles and renders chat templates in the sandbox; errors are explained in plain words.

This runs in the helper process (`render_helper`), which limits what the sandbox cannot: time,
memory and the interpreter itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jinja2 import Template, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.exceptions import SecurityError

from hearth.backends.errors import TemplateError
from hearth.backends.text.chat_templates import HINT
from hearth.backends.text.sandbox import Refusal, TemplateSandbox, make_environment

LARGEST_SOURCE_CHARS: Final = 256 * 1024
MOST_ADDED_BYTES: Final = 1024 * 1024
"""Output that a template may produce beyond the conversation itself."""
_LONGEST_MESSAGE_CHARS: Final = 300
_THOUGHTS: Final = ("reasoning_content", "thinking", "reasoning")
"""Names that templates use for a model's reasoning."""
_OTHER_FILES: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


def compile_template(source: str) -> Template:
    """A template that can be rendered many times.

    Raises:
        TemplateError: the source is too long, has a syntax error, or refers to other files.
    """
    with _explaining():
        environment, tree = _parsed(source)
        return environment.from_string(tree)


def variables(source: str) -> list[str]:
    """Names that the template reads and does not set itself, in order.

    Raises:
        TemplateError: as `compile_template`.
    """
    with _explaining():
        _, tree = _parsed(source)
        return sorted(meta.find_undeclared_variables(tree))


def _parsed(source: str) -> tuple[TemplateSandbox, nodes.Template]:
    if len(source) > LARGEST_SOURCE_CHARS:
        raise TemplateError(
            f"The chat template has {len(source):,} characters; "
            f"at most {LARGEST_SOURCE_CHARS:,} are possible.",
            HINT,
            reason="source",
        )
    environment = make_environment()
    tree = environment.parse(source)
    other = next(tree.find_all(_OTHER_FILES), None)
    if other is not None:
        raise SecurityError(f"{type(other).__name__.lower()} of another file")
    return environment, tree


def render(
    template: Template,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    tools: Sequence[Mapping[str, Any]] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> str:
    """The prompt that `template` makes of `messages`, in this process.

    Only for trusted templates and for the helper process; `Renderer` renders within limits.

    Args:
        messages: "role", "content" and whatever else the template reads.
        tools: functions that the model may call, as OpenAI describes them.
        extra: further variables, e.g. {"enable_thinking": False}.

    Raises:
        TemplateError: `reason` in `data` is "source", "syntax", "forbidden", "undefined", "refused"
            (the template's own `raise_exception`), "output" (more than 1 MiB), or "failed".
    """
    context = {
        "documents": None,
        **(extra or {}),
        "tools": tools,
        "messages": [_with_thoughts(message) for message in messages],
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    parts: list[str] = []
    room = MOST_ADDED_BYTES + sum(_text_bytes(value) for value in (messages, tools, extra))
    with _explaining():
        for part in template.generate(context):
            room -= len(part.encode())
            if room < 0:
                raise TemplateError(
                    "The chat template produced more than 1 MiB beyond the conversation.",
                    HINT,
                    reason="output",
                )
            parts.append(part)
    return "".join(parts)


def _with_thoughts(message: Mapping[str, Any]) -> dict[str, Any]:
    """`message` with its reasoning under both names that templates read, as in transformers."""
    thoughts = next((message[name] for name in _THOUGHTS if message.get(name) is not None), None)
    if thoughts is None:
        return dict(message)
    return {"thinking": thoughts, **message, "reasoning_content": thoughts}


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except TemplateError:
        raise
    except Exception as error:
        raise _explained(error) from error


def _explained(error: Exception) -> TemplateError:
    """`error` as a `TemplateError` with a message for users."""
    reason = "failed"
    if isinstance(error, Refusal):
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
    what = what.encode(errors="replace").decode()  # A template can make lone surrogates.
    if len(what) > _LONGEST_MESSAGE_CHARS:
        what = what[:_LONGEST_MESSAGE_CHARS] + "…"
    return TemplateError(f"The chat template {what.rstrip('.')}.", HINT, reason=reason)


def _text_bytes(value: Any) -> int:
    """Bytes of all text in a JSON value."""
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, Mapping):
        return sum(_text_bytes(item) for pair in value.items() for item in pair)
    if isinstance(value, Sequence):
        return sum(map(_text_bytes, value))
    return 0
