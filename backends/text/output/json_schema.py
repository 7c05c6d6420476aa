"""Prepares a JSON schema for the grammar compiler: references resolved, objects merged and closed.

An object whose schema has `properties` and no `additionalProperties` is closed: it may have the
listed properties only, as in llama.cpp, Ollama and xgrammar. Every value that is valid under the
result is valid under the original schema, and a schema that had valid values still has some.

To find out which properties an object may have, all schemas that apply to the same value are merged
first: its own keywords, `allOf`, the targets of `$ref`, and one branch of each `anyOf` and `oneOf`.
Schemas that cannot be merged are passed on unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote

from hearth.backends.text.output.bounds import FORMATS, bounded

_MOST_BRANCHES: Final = 64
"""Most combinations of the branches of one value's `anyOf` and `oneOf`."""
_MOST_STEPS: Final = 20_000
"""Most schemas merged in one document."""
_MOST_REFERENCES: Final = 64
"""Longest chain of references to references."""

_GIVEN: Final = "given"
"""The name of the unchanged document in `$defs`."""
_BOUNDS: Final = frozenset(
    (
        *("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"),
        *("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"),
    )
)
_TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
_NOT_SUPPORTED: Final = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems"),
        *("$dynamicRef", "$recursiveRef"),
    )
)
"""Keywords that are passed on, because the compiler refuses them by name."""
_VALUES: Final = frozenset(("type", "enum", "const", "format", "pattern", "multipleOf")).union(
    _BOUNDS, _NOT_SUPPORTED
)
_LISTS: Final = frozenset(("items", "prefixItems", "additionalItems"))
_KEYWORDS: Final = _VALUES.union(
    _LISTS,
    ("$ref", "allOf", "anyOf", "oneOf", "properties", "patternProperties", "propertyNames"),
    ("additionalProperties", "unevaluatedProperties", "required"),
)
"""All keywords that constrain values; others are annotations."""
_LOOK_AROUND: Final = ("(?=", "(?!", "(?<=", "(?<!")
_UUIDS: Final = frozenset(f"uuid{version}" for version in range(1, 9))


def prepared(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema`, resolved, merged and closed as described above, and bounded (`bounds`).

    Args:
        schema: has passed `rules.check_schema`; left unchanged.
    """
    return _Document(schema).prepared()


class _CannotMerge(Exception):
    """The schemas of one value cannot be merged and are passed on unchanged."""


@dataclass
class _Group:
    """The branches of an `anyOf` or `oneOf`, and the references that led to it."""

    branches: list[Any]
    is_exclusive: bool
    seen: tuple[str, ...]


@dataclass
class _Merged:
    """The combined keywords of all schemas of one value."""

    values: dict[str, Any] = field(default_factory=dict)
    more: list[dict[str, Any]] = field(default_factory=list)
    """Keywords that cannot be merged with the same keyword in `values`."""
    objects: list[dict[str, Any]] = field(default_factory=list)
    """The property keywords of each schema that has any."""
    required: dict[str, None] = field(default_factory=dict)
    unevaluated: Any = None
    items: list[Any] = field(default_factory=list)
    """Schemas of all items."""
    lists: dict[str, Any] = field(default_factory=dict)
    """Keywords for items by position, which only one schema may have."""
    groups: list[_Group] = field(default_factory=list)
    target: Any = None
    """The target of a reference, if nothing else applies to the value."""
    is_impossible: bool = False

    def copy(self) -> _Merged:
        made = replace(self)
        for name in ("values", "more", "objects", "required", "items", "lists", "groups"):
            setattr(made, name, getattr(self, name).copy())
        return made

    def properties(self) -> dict[str, list[Any]]:
        """The schemas of each property that is listed by name.

        Raises:
            _CannotMerge: a property may match a pattern of one schema and be subject to the
                `additionalProperties` of another.
        """
        rests = [one.get("additionalProperties", True) for one in self.objects]
        if len(rests) > 1 and self.patterns() and any(rest is not True for rest in rests):
            raise _CannotMerge
        by_name: dict[str, list[Any]] = {}
        for one in self.objects:
            by_name.update((name, []) for name in one.get("properties", ()) if name not in by_name)
        for name, schemas in by_name.items():
            for one, rest in zip(self.objects, rests, strict=True):
                schema = one.get("properties", {}).get(name, rest)
                _append(schemas, schema)
        return by_name

    def patterns(self) -> dict[str, list[Any]]:
        """The schemas of properties whose names match a pattern."""
        by_pattern: dict[str, list[Any]] = {}
        for one in self.objects:
            for pattern, schema in one.get("patternProperties", {}).items():
                _append(by_pattern.setdefault(pattern, []), schema)
        return by_pattern

    def rest(self) -> list[Any]:
        """The schemas of all other properties."""
        schemas: list[Any] = []
        for one in self.objects:
            if "additionalProperties" in one:
                _append(schemas, one["additionalProperties"])
        return schemas

    @property
    def says_rest(self) -> bool:
        return any("additionalProperties" in one for one in self.objects)

    @property
    def lists_properties(self) -> bool:
        return any("properties" in one for one in self.objects)


class _Document:
    """One schema and its definitions."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._names: dict[tuple[int, ...], str] = {}
        self._definitions: dict[str, Any] = {}
        self._pending: list[tuple[str, tuple[Any, ...]]] = []
        self._kept: list[Any] = []
        """Keeps alive the schemas that are known by their `id`."""
        self._met: set[tuple[int, ...]] = set()
        """Schemas of inner values that were written out already."""
        self._steps = 0
        self._uses_given = False

    def prepared(self) -> dict[str, Any]:
        made: Any = self._value([self._root])
        while self._pending:
            name, schemas = self._pending.pop()
            self._definitions[name] = self._value(schemas)
        if not isinstance(made, dict):
            made = {} if made else {"enum": []}
        if self._uses_given:
            outer = ("$id", "$schema")
            given = {key: value for key, value in self._root.items() if key not in outer}
            self._definitions[_GIVEN] = self._unchanged(given)
        if self._definitions:
            never = {f"#/$defs/{key}" for key, one in self._definitions.items() if one is False}

            # The compiler refuses references to `false` even where a property may be left out.
            def without(schema: dict[str, Any]) -> Any:
                reference = schema.get("$ref")
                is_never = isinstance(reference, str) and len(schema) == 1 and reference in never
                return False if is_never else schema

            made = _mapped({**made, "$defs": self._definitions}, without)
        if "$schema" in self._root:
            made = {"$schema": self._root["$schema"], **made}
        document: dict[str, Any] = made
        return document

    def _value(self, schemas: Sequence[Any]) -> Any:
        """One schema for a value to which `schemas` and nothing else apply."""
        try:
            merged = self._merge(schemas)
            if merged.target is not None:
                return self._reference((merged.target,))
            if len(merged.groups) == 1 and merged == _Merged(groups=merged.groups):
                branches = self._branches(merged.groups[0], is_alone=True)
                made = [self._value([branch]) for branch in branches]
            else:
                made = [self._closed(one) for one in self._alternatives(merged)]
        except (_CannotMerge, RecursionError):
            made = [self._unchanged(schema) for schema in schemas]
            return made[0] if len(made) == 1 else {"allOf": made}
        made = [one for one in made if one is not False]
        if len(made) < 2:
            return made[0] if made else False
        return {"anyOf": made}

    def _inner(self, schemas: list[Any]) -> Any:
        """One schema for an inner value, of a property or item, to which `schemas` apply."""
        if not schemas:
            return True
        key = tuple(map(id, schemas))
        if key in self._met and any(map(_is_nested, schemas)):
            return self._reference(tuple(schemas))
        self._kept.append(schemas)
        self._met.add(key)
        return self._value(schemas)

    def _reference(self, schemas: tuple[Any, ...]) -> dict[str, Any]:
        """A reference to a definition for a value to which `schemas` apply."""
        key = tuple(map(id, schemas))
        if key not in self._names:
            self._kept.append(schemas)
            self._names[key] = f"s{len(self._names)}"
            self._pending.append((self._names[key], schemas))
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _merge(self, schemas: Sequence[Any]) -> _Merged:
        """`schemas` merged with their references and `allOf`; branches are not chosen yet."""
        merged = _Merged()
        for schema in schemas:
            self._add(merged, schema, is_alone=len(schemas) == 1)
        return merged

    def _facts(self, schemas: Sequence[Any]) -> _Merged:
        """As `_merge`; if the result is a reference, its target merged."""
        merged = self._merge(schemas)
        for _ in range(_MOST_REFERENCES):
            if merged.target is None:
                return merged
            merged = self._merge([merged.target])
        raise _CannotMerge

    def _add(
        self, merged: _Merged, schema: Any, *, is_alone: bool = False, seen: tuple[str, ...] = ()
    ) -> None:
        """Merge `schema` into `merged`.

        Args:
            is_alone: no other schema applies to the value.
            seen: references that led here.
        """
        self._count(1)
        if isinstance(schema, bool):
            merged.is_impossible |= not schema
            return
        if not isinstance(schema, dict):
            raise _CannotMerge
        is_single = is_alone and len(_KEYWORDS & schema.keys()) == 1
        if "unevaluatedProperties" in schema:
            if not is_alone:  # The evaluated properties depend on the schema that has the keyword.
                raise _CannotMerge
            merged.unevaluated = schema["unevaluatedProperties"]
        if "$ref" in schema:
            reference = schema["$ref"]
            target = self._target(reference)
            if is_single and isinstance(target, dict):
                merged.target = target
                return
            if reference in seen:  # It applies already or is a branch of itself.
                merged.is_impossible = True
                return
            if len(seen) == _MOST_REFERENCES:
                raise _CannotMerge
            self._add(merged, target, seen=(*seen, reference))
        members = _listed(schema, "allOf")
        for member in members:
            self._add(merged, member, is_alone=is_single and len(members) == 1, seen=seen)
        for key in ("anyOf", "oneOf"):
            branches = _listed(schema, key)
            if len(branches) == 1:
                self._add(merged, branches[0], is_alone=is_single, seen=seen)
            elif key in schema:
                merged.groups.append(_Group(branches, key == "oneOf", seen))
        self._add_object(merged, schema)
        self._add_list(merged, schema)
        for key in _VALUES & schema.keys():
            self._add_value(merged, key, schema[key])

    def _add_object(self, merged: _Merged, schema: dict[str, Any]) -> None:
        made: dict[str, Any] = {
            key: schema[key] for key in ("properties", "patternProperties") if key in schema
        }
        if not all(isinstance(value, dict) for value in made.values()):
            raise _CannotMerge
        if "additionalProperties" in schema:
            made["additionalProperties"] = schema["additionalProperties"]
        elif "unevaluatedProperties" in schema and not (merged.objects or merged.groups):
            # Nothing else evaluates properties.
            made["additionalProperties"] = schema["unevaluatedProperties"]
        if "propertyNames" in schema:
            named = _with_names(made, self._facts([schema["propertyNames"]]))
            # Properties listed only for their names would count as evaluated.
            is_rest_lost = named is not made and "additionalProperties" not in made
            if named is None or (is_rest_lost and merged.unevaluated not in (None, True)):
                merged.values["propertyNames"] = self._unchanged(schema["propertyNames"])
            else:
                made = named
        if made:
            merged.objects.append(made)
        required = schema.get("required")
        if isinstance(required, list | tuple):
            merged.required |= dict.fromkeys(required)

    def _add_list(self, merged: _Merged, schema: dict[str, Any]) -> None:
        made = {key: schema[key] for key in _LISTS if key in schema}
        if made.keys() == {"items"} and isinstance(made["items"], dict | bool):
            _append(merged.items, made["items"])
        elif made and merged.lists:
            raise _CannotMerge
        else:
            merged.lists |= made
        if merged.lists and merged.items:
            raise _CannotMerge

    def _add_value(self, merged: _Merged, key: str, value: Any) -> None:
        values = merged.values
        if key in _NOT_SUPPORTED:
            if key == "uniqueItems" and value is False:
                return
            value = self._unchanged(value)
        elif key == "format" and isinstance(value, str):
            value = "uuid" if value in _UUIDS else value
            if value not in FORMATS:
                return
        if key not in values or _written(values[key]) == _written(value):
            values[key] = value
        else:
            merged.more.append({key: value})

    def _alternatives(self, merged: _Merged) -> list[_Merged]:
        """`merged` with one branch of each group, in all combinations."""
        if not merged.groups:
            return [merged]
        alternatives: list[_Merged] = []
        group = merged.groups[0]
        for branch in self._branches(group, is_alone=False):
            taken = merged.copy()
            del taken.groups[0]
            self._add(taken, branch, seen=group.seen)
            alternatives += self._alternatives(taken)
            if len(alternatives) > _MOST_BRANCHES:
                raise _CannotMerge
        return alternatives

    def _branches(self, group: _Group, *, is_alone: bool) -> list[Any]:
        """The branches of `group`, changed so that a value may follow any of them regardless of the
        others. Branches with a pattern that is not supported are left out if others remain.
        """
        branches = group.branches
        if group.is_exclusive:
            branches = self._exclusive(branches, is_alone=is_alone)
        usable = [branch for branch in branches if not _looks_around(branch)]
        return usable or branches

    def _exclusive(self, branches: list[Any], *, is_alone: bool) -> list[Any]:
        """The branches of a `oneOf`, changed if needed so that a value of one is not valid under
        another.

        Args:
            is_alone: each branch is closed by itself.

        Raises:
            _CannotMerge: this cannot be guaranteed.
        """
        facts = [self._facts([branch]) for branch in branches]
        if facts and all(_types(one) == {"object"} for one in facts):
            for name in facts[0].properties():
                if self._distinguishes(name, facts):
                    return [
                        branch if name in one.required else self._requiring(branch, name)
                        for branch, one in zip(branches, facts, strict=True)
                    ]
        for one in facts:
            for other in facts:
                is_clear = one is other or self._differ(one, other)
                if not is_clear and not (is_alone and _cannot_have(one, other.required)):
                    raise _CannotMerge
        return branches

    def _distinguishes(self, name: str, facts: Sequence[_Merged]) -> bool:
        """Whether no two of the objects can have the same value of the property `name`."""
        by_object = [one.properties().get(name) for one in facts]
        if not all(by_object):
            return False
        kinds = [self._facts(schemas) for schemas in by_object if schemas]
        return all(
            not _values_meet(kind, other)
            for index, kind in enumerate(kinds)
            for other in kinds[:index]
        )

    def _requiring(self, branch: Any, name: str) -> Any:
        made = {"allOf": [branch], "required": [name]}
        self._kept.append(made)
        return made

    def _differ(self, one: _Merged, other: _Merged) -> bool:
        """Whether no value is valid under both."""
        if not _values_meet(one, other):
            return True
        shared = [name for name in one.properties() if name in other.properties()]
        return _types(one) == {"object"} == _types(other) and any(
            self._distinguishes(name, (one, other))
            for name in shared
            if name in one.required or name in other.required
        )

    def _closed(self, merged: _Merged) -> Any:
        """The schema of a value without branches."""
        if merged.is_impossible:
            return False
        is_bound = any(_BOUNDS & one.keys() for one in merged.more)
        made = dict(merged.values) if is_bound else bounded(merged.values)
        if merged.objects or merged.required or merged.unevaluated is not None:
            made |= self._closed_object(merged)
        if merged.items:
            made["items"] = self._inner(merged.items)
        for key, value in merged.lists.items():
            is_list = isinstance(value, list)
            made[key] = [self._inner([one]) for one in value] if is_list else self._inner([value])
        return {**made, "allOf": merged.more} if merged.more else made

    def _closed_object(self, merged: _Merged) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        properties, patterns, rest = merged.properties(), merged.patterns(), merged.rest()
        self._count(len(properties))
        is_open = not merged.says_rest
        if is_open and merged.unevaluated is not None:
            rest, is_open = [merged.unevaluated], False
        if is_open and merged.lists_properties:
            named = {**properties, **{one: [] for one in merged.required if one not in properties}}
            least = merged.values.get("minProperties", 0)
            if not _is_number(least) or least <= len(named):
                properties, rest = named, [False]
        if properties or merged.lists_properties:
            schema["properties"] = {
                name: self._inner(schemas) for name, schemas in properties.items()
            }
        if patterns:
            schema["patternProperties"] = {
                one: self._inner(schemas) for one, schemas in patterns.items()
            }
        if merged.required:
            schema["required"] = list(merged.required)
        if rest:
            schema["additionalProperties"] = self._inner(rest)
        return schema

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise _CannotMerge

    def _target(self, reference: Any) -> Any:
        """The target of `reference`."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _CannotMerge
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchored(pointer)
        target: Any = self._root
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and part in target:
                target = target[part]
            elif isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                target = target[int(part)]
            else:
                raise _CannotMerge
        return target

    def _anchored(self, name: str) -> Any:
        pending: list[Any] = [self._root]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                if value.get("$anchor") == name:
                    return value
                pending += value.values()
            elif isinstance(value, list):
                pending += value
        raise _CannotMerge

    def _unchanged(self, value: Any) -> Any:
        """`value` with its references pointing into the unchanged document."""

        def with_given(schema: dict[str, Any]) -> Any:
            reference = schema.get("$ref")
            if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
                self._uses_given = True
                schema["$ref"] = f"#/$defs/{_GIVEN}{reference[1:]}"
            return schema

        return _mapped(value, with_given)


def _mapped(value: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """A copy of `value` with `change` applied to each object in it, the innermost first."""
    if isinstance(value, list):
        return [_mapped(one, change) for one in value]
    if not isinstance(value, dict):
        return value
    return change({key: _mapped(one, change) for key, one in value.items()})


def _listed(schema: dict[str, Any], key: str) -> list[Any]:
    """The members of `allOf` and the like."""
    members = schema.get(key, [])
    if not isinstance(members, list) or (key in schema and not members):
        raise _CannotMerge
    return members


def _append(schemas: list[Any], schema: Any) -> None:
    """Add `schema`, unless it is `true` or already in `schemas`."""
    if schema is not True and not any(schema is other for other in schemas):
        schemas.append(schema)


def _is_nested(schema: Any) -> bool:
    """Whether `schema` contains others."""
    return isinstance(schema, dict) and any(isinstance(one, dict | list) for one in schema.values())


def _with_names(object_keys: dict[str, Any], names: _Merged) -> dict[str, Any] | None:
    """`object_keys`, the property keywords of a schema, with the constraints `names` of its
    `propertyNames`; None if other keywords cannot express them.
    """
    values = dict(names.values)
    if values.pop("type", "string") != "string" or names.groups or names.more:
        return None
    if not values:
        return object_keys
    rest = object_keys.get("additionalProperties", True)
    if object_keys.keys() - {"additionalProperties"}:
        return None
    choices = _choices(names)
    if choices is not None:
        listed = [json.loads(one) for one in choices]
        properties = {one: rest for one in listed if isinstance(one, str)}
        return {"properties": properties, "additionalProperties": False}
    if values.keys() == {"pattern"}:
        pattern = values["pattern"]
    elif values.keys() <= {"minLength", "maxLength"}:
        pattern = rf"^[\s\S]{{{values.get('minLength', 0)},{values.get('maxLength', '')}}}$"
    else:
        return None
    return {"patternProperties": {pattern: rest}, "additionalProperties": False}


def _looks_around(branch: Any) -> bool:
    """Whether `branch` has a pattern with look-around, which the compiler does not support."""
    pattern = branch.get("pattern") if isinstance(branch, dict) else None
    return isinstance(pattern, str) and any(one in pattern for one in _LOOK_AROUND)


def _cannot_have(closed: _Merged, names: Iterable[str]) -> bool:
    """Whether an object always lacks one of `names` once its schema is closed."""
    properties = closed.properties()
    return (
        _types(closed) == {"object"}
        and closed.lists_properties
        and not (closed.says_rest or closed.patterns() or closed.groups)
        and closed.unevaluated is None
        and "minProperties" not in closed.values
        and any(name not in properties and name not in closed.required for name in names)
    )


def _values_meet(one: _Merged, other: _Merged) -> bool:
    """Whether types and choices allow a value that is valid under both."""
    choices, others = _choices(one), _choices(other)
    if choices is not None and others is not None:
        return any(choice in others for choice in choices)
    return bool(_types(one) & _types(other))


def _choices(merged: _Merged) -> list[str] | None:
    """The values that `const` or `enum` allows, as JSON; None if neither is given."""
    if "const" in merged.values:
        return [_written(merged.values["const"])]
    choices = merged.values.get("enum")
    return list(map(_written, choices)) if isinstance(choices, list) else None


def _types(merged: _Merged) -> set[str]:
    """The types that a value may have; "integer" counts as "number"."""
    choices = _choices(merged)
    if choices is not None:
        return {_type(json.loads(choice)) for choice in choices}
    type_names = merged.values.get("type", list(_TYPES))
    type_names = type_names if isinstance(type_names, list) else [type_names]
    return {"number" if one == "integer" else str(one) for one in type_names}


def _type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    kinds: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "number")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _written(value: Any) -> str:
    """`value` as JSON, equal for equal values: 1.0 is 1, also in lists and objects."""
    whole = json.loads(json.dumps(value), parse_float=_number)
    return json.dumps(whole, sort_keys=True)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value
