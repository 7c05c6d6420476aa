"""`quantization_config` of compressed-tensors.

Source: compressed-tensors' `quantization/quant_config.py`, `quant_scheme.py` and `utils/match.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hearth.quant.checkpoints.fp8_config import WEIGHTS_ALONE, block_of
from hearth.quant.checkpoints.patterns import matches
from hearth.quant.checkpoints.scheme import Checkpoint, Scheme
from hearth.quant.json_fields import Fields

_PACKED: Final = "pack-quantized"
_SCALED: Final = ("int-quantized", "float-quantized", "naive-quantized")
_MIXED: Final = "mixed-precision"
_FORMATS: Final = (_PACKED, *_SCALED)
_PATTERN: Final = "re:"
_CLASSES: Final = {"Linear", "Embedding"}
_GROUP: Final[dict[str, Any]] = {"strategy": "group", "group_size": 128}
_INT4: Final[dict[str, Any]] = {"num_bits": 4, "type": "int"}
_INT8: Final[dict[str, Any]] = {"num_bits": 8, "type": "int", "strategy": "channel"}
_FP8: Final[dict[str, Any]] = {"num_bits": 8, "type": "float"}
_PRESETS: Final[dict[str, dict[str, Any]]] = {
    "W4A16": {**_INT4, **_GROUP},
    "W4A16_ASYM": {**_INT4, **_GROUP, "symmetric": False},
    "W8A16": _INT8,
    "W8A8": _INT8,
    "INT8": _INT8,
    "W4A8": {**_INT4, **_GROUP},
    "FP8": {**_FP8, "strategy": "tensor"},
    "FP8_DYNAMIC": {**_FP8, "strategy": "channel"},
    "FP8_BLOCK": {**_FP8, "strategy": "block", "block_structure": [128, 128]},
}
"""The `weights` of groups that are named after a preset and only list targets."""


def compressed_tensors(fields: Fields) -> Checkpoint:
    """Raises the errors of `read_checkpoint`."""
    kind = fields.text("format", _MIXED)
    if kind not in (*_FORMATS, _MIXED):
        raise fields.unsupported("format", ", ".join(_FORMATS))
    sparsity = fields.section("sparsity_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        raise sparsity.unsupported("format", "dense")
    if fields.values.get("transform_config"):
        raise fields.unsupported("transform_config", "weights that are not rotated")
    groups = fields.section("config_groups")
    if groups is None or not groups.values:
        raise fields.wrong("config_groups", "must be an object with a group")
    schemes: list[tuple[tuple[str, ...], Scheme]] = []
    activations: set[str] = set()
    labels: list[str] = []
    for name in groups.values:
        group = _group(groups, name)
        weights = group.section("weights")
        if weights is None:
            continue
        own = group.text("format", kind) if group.has("format") else kind
        schemes.append((group.texts("targets"), _scheme(group, weights, own)))
        is_float = weights.text("type", "int") == "float"
        labels.append(f"{'FP' if is_float else 'INT'}{weights.integer('num_bits')}")
        inputs = group.section("input_activations")
        if inputs is not None:
            is_float = inputs.text("type", "int") == "float"
            activations.add(f"{'FP' if is_float else 'INT'}{inputs.integer('num_bits')}")
    if not schemes:
        raise groups.wrong(next(iter(groups.values)), "must describe weights")
    ignored = fields.texts("ignore")
    for pattern in (*ignored, *(target for targets, _ in schemes for target in targets)):
        _matches(pattern, "")
    notices = [WEIGHTS_ALONE.format(what=" and ".join(sorted(activations)))] if activations else []
    if fields.section("kv_cache_scheme") is not None:
        notices.append(
            "The checkpoint has scales for keys and values in eight bits. They are not used: "
            "kv_type (--kv-type) says how keys and values are kept."
        )
    return Checkpoint(
        "+".join(dict.fromkeys(labels)),
        lambda module: _scheme_of(module, schemes, ignored),
        frozenset(scheme.layout for _, scheme in schemes),
        tuple(notices),
    )


def _group(groups: Fields, name: str) -> Fields:
    """The group `name`, or the preset of that name with the group's targets."""
    value = groups.values[name]
    if isinstance(value, list) and name.upper() in _PRESETS:
        preset = {"targets": value, "weights": _PRESETS[name.upper()]}
        return Fields(groups.path, preset, f"{groups.prefix}{name}.")
    if isinstance(value, list):
        raise groups.unsupported(name, "groups that describe weights, or " + ", ".join(_PRESETS))
    group = groups.section(name)
    if group is None:
        raise groups.wrong(name, "must be an object")
    return group


def _scheme(group: Fields, weights: Fields, kind: str) -> Scheme:
    is_float = weights.text("type", "int") == "float"
    bits = weights.integer("num_bits")
    if kind == _MIXED:
        kind = "float-quantized" if is_float else _PACKED
    if kind not in _FORMATS:
        raise group.unsupported("format", ", ".join(_FORMATS))
    strategy = weights.text("strategy", "group" if weights.has("group_size") else "tensor")
    size = max(0, weights.integer("group_size", -1, least=-1, most=1 << 20))
    if strategy not in ("tensor", "channel", "group", "block"):
        raise weights.unsupported("strategy", "tensor, channel, group, block")
    if strategy == "group" and not size:
        raise weights.wrong("group_size", "must be from 1")
    size = size if strategy == "group" else 0
    if kind == _PACKED:
        if is_float or bits not in (4, 6, 8):
            raise weights.unsupported("type" if is_float else "num_bits", "int of 4, 6 or 8 bits")
        if strategy == "block":
            raise weights.unsupported("strategy", "tensor, channel, group")
        is_ordered = weights.values.get("actorder") in ("group", "dynamic", True)
        if is_ordered and bits == 6:
            raise weights.unsupported("actorder", "static, or none, of 6 bits")
        return Scheme("packed", bits, size, is_ordered=is_ordered)
    if bits != 8:
        raise weights.unsupported("num_bits", "8")
    if is_float and size % 128:
        raise weights.unsupported("group_size", "128, or a multiple of that")
    if strategy == "block" and not is_float:
        raise weights.unsupported("strategy", "tensor, channel, group")
    block = block_of(weights, "block_structure") if strategy == "block" else None
    if is_float and size:
        block, size = (1, size), 0
    return Scheme("scaled", bits, size, block=block)


def _scheme_of(
    module: str, schemes: Sequence[tuple[tuple[str, ...], Scheme]], ignored: Sequence[str]
) -> Scheme | None:
    """The scheme of a module. Exact names take precedence over patterns, and patterns over classes,
    as in `match_targets`. If there is only one scheme, every module with quantized tensors has it.
    """
    if len(schemes) == 1:
        return schemes[0][1]
    if any(_matches(pattern, module) for pattern in ignored):
        return None
    every = [(target, scheme) for targets, scheme in schemes for target in targets]
    every.sort(key=lambda one: (one[0] in _CLASSES, one[0].startswith(_PATTERN)))
    kind = "Embedding" if module.endswith("embed_tokens") else "Linear"
    return next(
        (scheme for target, scheme in every if target == kind or _matches(target, module)), None
    )


def _matches(target: str, module: str) -> bool:
    if target.startswith(_PATTERN):
        return matches(target.removeprefix(_PATTERN), module)
    return target == module
