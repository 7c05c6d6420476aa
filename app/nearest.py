"""Did you mean ...? One way to find the name that somebody meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Up to `most` of `known` that `name` begins or is spelt much like, best first."""
    from difflib import get_close_matches

    by_lower = {other.lower(): other for other in known}
    wanted = name.lower()
    begun = [other for other in by_lower if len(wanted) > 1 and other.startswith(wanted)]
    alike = get_close_matches(wanted, by_lower, n=most + len(begun), cutoff=0.6)
    return [by_lower[other] for other in dict.fromkeys([*begun, *alike])][:most]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean x?", with the space before it; empty if nothing is near."""
    found = nearest(name, known)
    return f" Did you mean {found[0]}?" if found else ""
