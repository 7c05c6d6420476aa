"""Plausible values for the types that clients declare for their parameters."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
)

from typing_extensions import get_type_hints, is_typeddict

_PLAIN: dict[Any, tuple[Any, ...]] = {
    str: ("x",),
    bool: (True, False),
    int: (1, 2),
    float: (0.5,),
    object: ({},),
    Any: ({},),
    type(None): (None,),
}


def values(annotation: Any, levels: int = 2) -> Iterator[Any]:
    """One value for each alternative of `annotation`: for a union each of its types, for a
    `Literal` each value, for a typed dictionary one with only its required fields, and one with
    each optional field. An optional field gets all of its values on the first `levels`, then one.
    Files have no values, because JSON has none.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Required, NotRequired, Annotated):
        yield from values(arguments[0], levels)
    elif origin in (Union, types.UnionType):
        for arm in arguments:
            yield from values(arm, levels)
    elif origin is Literal:
        yield from arguments
    elif is_typeddict(annotation):
        yield from _dictionaries(annotation, levels)
    elif origin in (list, Iterable, Sequence):
        yield from ([value] for value in values(arguments[0], levels))
    elif origin in (dict, Mapping):
        yield from ({"5": value} for value in values(arguments[1], levels))
    else:
        yield from _PLAIN.get(annotation, ())


def _dictionaries(kind: Any, levels: int) -> Iterator[dict[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    # The class does not know which fields are required, because its annotations are strings.
    needed = {name for name, hint in hints.items() if _is_required(hint, kind.__total__)}
    least = {name: next(values(hints[name])) for name in sorted(needed)}
    yield least
    for name in sorted(hints.keys() - needed):
        some = itertools.islice(values(hints[name], levels - 1), None if levels > 0 else 1)
        yield from ({**least, name: value} for value in some)


def _is_required(hint: Any, total: bool) -> bool:
    origin = get_origin(hint)
    return origin is Required or (total and origin is not NotRequired)


def parameters(kind: Any) -> dict[str, list[Any]]:
    """The fields of a typed dictionary, and values of each."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: list(values(hint)) for name, hint in hints.items()}
