"""`quantization_config` of GPTQ and AWQ.

Source: GPTQModel's `quantization/config.py`, AutoAWQ's `models/_config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hearth.quant.checkpoints.patterns import matches
from hearth.quant.checkpoints.scheme import Checkpoint, Scheme
from hearth.quant.json_fields import Fields

_BITS: Final = (2, 3, 4, 8)
_OFFSETS: Final = {"gptq": 1, "gptq_v2": 0}
"""The number to add to the stored codes for zero, by the name of GPTQ's format."""


def gptq(fields: Fields) -> Checkpoint:
    """Raises the errors of `read_checkpoint`."""
    for key in ("checkpoint_format", "format"):
        if fields.has(key) and fields.text(key) not in _OFFSETS:
            raise fields.unsupported(key, ", ".join(_OFFSETS))
    if fields.flag("is_marlin_format", False):
        raise fields.unsupported("is_marlin_format", "false")
    kind = fields.text("checkpoint_format", fields.text("format", "gptq"))
    scheme = replace(_scheme_of_gptq(fields, None), zero_offset=_OFFSETS[kind])
    dynamic = fields.section("dynamic")
    if dynamic is None:
        return Checkpoint(f"GPTQ {scheme.bits}-bit", lambda module: scheme, frozenset({"gptq"}))
    # Parsed here so that errors are found before weights are read.
    schemes = _overrides(dynamic, scheme)

    def scheme_of(module: str) -> Scheme | None:
        """The scheme of the first pattern that matches the name, else the common one."""
        return next((one for pattern, one in schemes if matches(pattern, module)), scheme)

    return Checkpoint(f"GPTQ {scheme.bits}-bit", scheme_of, frozenset({"gptq"}))


def awq(fields: Fields) -> Checkpoint:
    """Raises the errors of `read_checkpoint`."""
    for key in ("version", "format", "checkpoint_format"):
        if fields.has(key) and fields.text(key).lower() != "gemm":
            raise fields.unsupported(key, "gemm")
    if fields.text("backend", "") == "llm-awq":
        raise fields.unsupported("backend", "autoawq")
    bits = fields.integer("bits", 4)
    if bits != 4:
        raise fields.unsupported("bits", "4")
    scheme = Scheme("awq", bits, _group(fields, 128), has_zeros=fields.flag("zero_point", True))
    return Checkpoint(f"AWQ {bits}-bit", lambda module: scheme, frozenset({"awq"}))


def _scheme_of_gptq(fields: Fields, base: Scheme | None) -> Scheme:
    """The scheme in `fields`; missing values are those of `base`."""
    bits = fields.integer("bits", None if base is None else base.bits)
    if bits not in _BITS:
        raise fields.unsupported("bits", ", ".join(str(one) for one in _BITS))
    group = _group(fields, 128) if base is None or fields.has("group_size") else base.group
    return Scheme(
        "gptq",
        bits,
        group,
        zero_offset=0 if base is None else base.zero_offset,
        has_zeros=not fields.flag("sym", base is None or not base.has_zeros),
        is_ordered=fields.flag("desc_act", base is not None and base.is_ordered),
    )


def _group(fields: Fields, default: int) -> int:
    return max(0, fields.integer("group_size", default, least=-1, most=1 << 20))


def _overrides(dynamic: Fields, base: Scheme) -> list[tuple[str, Scheme | None]]:
    """The schemes of modules whose names match regular expressions."""
    schemes: list[tuple[str, Scheme | None]] = []
    for key, value in dynamic.values.items():
        pattern = key.removeprefix("-:").removeprefix("+:")
        matches(pattern, "")
        if key.startswith("-:"):
            schemes.append((pattern, None))
            continue
        if not isinstance(value, Mapping):
            raise dynamic.wrong(key, "must be an object")
        fields = Fields(dynamic.path, value, f"{dynamic.prefix}{key}.")
        schemes.append((pattern, _scheme_of_gptq(fields, base)))
    return schemes
