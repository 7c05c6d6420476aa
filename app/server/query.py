"""The query parameters of a URL."""

from __future__ import annotations

from starlette.requests import Request

from hearth.backends.errors import InvalidParameter


def query(http: Request, *names: str) -> dict[str, str]:
    """Those of the URL's query parameters that are in `names`; others have no effect.

    Raises:
        InvalidParameter: one of them is given twice.
    """
    found: dict[str, str] = {}
    for name, value in http.query_params.multi_items():
        if name in found:
            raise InvalidParameter(name, f"{name} is given twice.", "Give it once.")
        if name in names:
            found[name] = value
    return found
