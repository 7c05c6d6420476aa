"""What stands behind the question mark of a URL."""

from __future__ import annotations

from starlette.requests import Request

from hearth.backends.errors import InvalidParameter


def query(http: Request, *names: str) -> dict[str, str]:
    """The parameters of the URL that `names` are; those that are missing are left out.

    Raises:
        InvalidParameter: there is another one, or one twice.
    """
    found: dict[str, str] = {}
    for name, value in http.query_params.multi_items():
        shown = name[:100]
        if name not in names:
            raise InvalidParameter(
                shown,
                f"There is no parameter {shown} here.",
                f"This URL takes {' and '.join(names) or 'none'}.",
            )
        if name in found:
            raise InvalidParameter(shown, f"{shown} is given twice.", "Give it once.")
        found[name] = value
    return found
