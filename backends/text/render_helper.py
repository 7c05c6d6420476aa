"""The small process that renders chat templates: `python -P -m hearth.backends.text.render_helper`.

It may be killed at any time, and its parent does so when a template takes too long. It holds no
secrets, cannot open files (where the system has resource limits), and dies with its parent.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import Any, Final

from hearth.backends.errors import TemplateError
from hearth.backends.process import die_with_parent, take_private_pipes
from hearth.backends.text import framing
from hearth.backends.text.template import compile_template, render, render_compiled

_MEMORY_BYTES: Final = 512 * 1024 * 1024
_CPU_S_PER_RENDER: Final = 5
"""Ends a runaway template where the parent was killed before it could."""
_WARM_UP: Final = (
    "{{ '\\n'|wordwrap|pprint|urlize }}{{ strftime_now('%c') }}{{ messages|tojson }}"
    "{{ raise_exception('') }}"
)
"""Uses what is imported late, and ends in an error, since errors import the most."""


def main() -> None:
    """Serve renders from standard input until it closes."""
    die_with_parent(int(sys.argv[1]))
    input_fd, output_fd = take_private_pipes()
    requests, replies = os.fdopen(input_fd, "rb"), os.fdopen(output_fd, "wb")
    _load_late_modules()
    _limit_resources()
    compiled = functools.lru_cache(maxsize=4)(compile_template)
    framing.write(replies, framing.frame({"ready": True}))
    while True:
        try:
            request = framing.read(requests)
        except EOFError:
            return
        _renew_cpu_limit()
        framing.write(replies, framing.frame(_answer(compiled, request)))


def _answer(compiled: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        template = compiled(request.pop("template"))
        return {"text": render_compiled(template, **request)}
    except TemplateError as error:
        return {"error": error.message, "hint": error.hint, "data": error.data}


def _load_late_modules() -> None:
    """Meet all that Python and Jinja import at first use, while files can still be opened."""
    with contextlib.suppress(TemplateError):
        render(_WARM_UP, [])


def _limit_resources() -> None:
    """Memory, files and processes, as far as the system knows such limits."""
    if sys.platform == "win32":
        return
    import resource

    limits = {
        "RLIMIT_AS": _MEMORY_BYTES,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 0,
    }
    for name, most in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # not known, or not allowed
            resource.setrlimit(getattr(resource, name), (most, most))


def _renew_cpu_limit() -> None:
    if sys.platform == "win32":
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    soon = int(used.ru_utime + used.ru_stime) + 1 + _CPU_S_PER_RENDER
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    with contextlib.suppress(ValueError, OSError):  # an inherited hard limit that is lower
        resource.setrlimit(resource.RLIMIT_CPU, (soon, hard))


if __name__ == "__main__":
    main()
