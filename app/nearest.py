"""Did you mean ...? The shared way to find the name that was meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Up to `most` names of `known` that `name` begins or resembles, best first."""
    from difflib import get_close_matches

    by_lower = {other.lower(): other for other in known}
    wanted = name.lower()
    begun = [other for other in by_lower if len(wanted) > 1 and other.startswith(wanted)]
    alike = get_close_matches(wanted, by_lower, n=most + len(begun), cutoff=0.6)
    return [by_lower[other] for other in dict.fromkeys([*begun, *alike])][:most]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean x?", with the space before it; empty if nothing is near."""
    near = nearest(name, known)
    return f" Did you mean {near[0]}?" if near else ""


def one_edit_apart(a: str, b: str) -> bool:
    """Whether the Damerau-Levenshtein distance of `a` and `b` is exactly 1: one character inserted,
    left out or replaced, or two neighbours swapped.
    """
    if a == b or abs(len(a) - len(b)) > 1:
        return False
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    rest_a, rest_b = a[start:], b[start:]
    if len(a) != len(b):
        shorter, longer = sorted((rest_a, rest_b), key=len)
        return longer[1:] == shorter
    swapped = rest_a[:2] == rest_b[:2][::-1] and rest_a[2:] == rest_b[2:]
    return swapped or rest_a[1:] == rest_b[1:]
