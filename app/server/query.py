"""The query parameters of a URL."""

from __future__ import annotations

from starlette.requests import Request

from hearth.backends.errors import InvalidParameter


def query(http: Request, *names: str) -> dict[str, str]:
    """The query parameters in `names` that the URL has; others have no effect.

    Raises:
        InvalidParameter: one of `names` is given twice.
    """
    given: dict[str, str] = {}
    for name, value in http.query_params.multi_items():
        if name in given:
            raise InvalidParameter(name, f"{name} is given twice in the URL.", "Send it once.")
        if name in names:
            given[name] = value
    return given
