"""The process that renders chat templates: `python -P -m hearth.backends.text.render_helper`.

Its permissions and limits are set in `hearth.backends.machine.helper_child`.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Final

from hearth.backends.errors import TemplateError
from hearth.backends.machine.helper_child import serve
from hearth.backends.text.template import compile_template, render, variables

_WARM_UP: Final = (
    "{{ '\\n'|wordwrap|pprint|urlize }}{{ strftime_now('%c') }}{{ messages|tojson }}"
    "{{ raise_exception('') }}"
)
"""Uses everything that is imported lazily, and ends in an error, since errors import the most."""


def main() -> None:
    """Serve renders from standard input until it closes."""
    compiled = functools.lru_cache(maxsize=4)(compile_template)
    serve(functools.partial(_answer, compiled), _load_late_modules)


def _answer(compiled: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        source = request.pop("template")
        if not request:
            return {"variables": variables(source)}
        return {"text": render(compiled(source), **request)}
    except TemplateError as error:
        return {"error": error.message, "hint": error.hint, "data": error.data}


def _load_late_modules() -> None:
    """Trigger all lazy imports of Python and Jinja while files can still be opened."""
    with contextlib.suppress(TemplateError):
        render(compile_template(_WARM_UP), [])


if __name__ == "__main__":
    main()
