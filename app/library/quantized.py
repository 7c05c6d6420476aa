"""Reads the manifests next to quantized files: which model they were made from, and the effect."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hearth.app.format import size
from hearth.app.library.compare_quality import Measured, Quality, perplexity_change
from hearth.app.library.local import LocalModel
from hearth.app.library.model_files import WEIGHTS, read_start
from hearth.app.library.quantize_methods import CONVERT
from hearth.quant.gguf.quantize_file import manifest_path, write_json

_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Quantized:
    """A model that was made from another model on this machine.

    Attributes:
        source: the model that it was made from.
        change: relative change of the perplexity and its standard error; None: not measured.
        before, after: measurements of source and result; None: not measured.
        is_converted: whether nothing was rounded, so that the weights are those of the source.
    """

    source: LocalModel
    model: LocalModel
    text: str
    change: tuple[float, float] | None
    before: Measured | None
    after: Measured | None
    is_converted: bool = False

    @property
    def words(self) -> str:
        """The effect of quantizing in one line."""
        share = self.model.size_bytes / max(1, self.source.size_bytes)
        source = self.source
        verb = "Converted" if self.is_converted else "Quantized"
        parts = [f"{verb} from {source.name}: {share:.0%} of its {size(source.size_bytes)}"]
        if self.change is not None:
            parts.append(f"perplexity {self.change[0]:+.2%} ± {self.change[1]:.2%} on {self.text}")
            if self.after is not None and self.after.scored_tokens:
                tokens, window = self.after.scored_tokens, self.after.window_tokens
                parts[-1] += f" ({tokens:,} tokens, windows of {window:,})"
        if self.before is not None and self.after is not None:
            parts.append(speed_change(self.before, self.after))
        return ", ".join(filter(None, parts)) + "."


def speed_change(before: Measured, after: Measured) -> str:
    """Both decoding speeds and the backends, with a warning if they cannot be compared.

    Empty if they were not measured.
    """
    if not before.decode_tok_per_s or not after.decode_tok_per_s:
        return ""
    rates = f"{before.decode_tok_per_s:,.1f} → {after.decode_tok_per_s:,.1f} tok/s"
    how = [f"{one.backend}, {one.threads} threads" for one in (before, after) if one.backend]
    notes = [" → ".join(dict.fromkeys(how))] if how else []
    if before.is_busy or after.is_busy:
        notes.append("not comparable: other programs were using the processor")
    return f"{rates} ({'; '.join(notes)})" if notes else rates


def keep_measured(path: Path, text: str, before: Quality, after: Quality) -> tuple[float, float]:
    """Write the measurements into the manifest of the quantized file at `path`.

    Returns the `perplexity_change`.

    Raises:
        OSError: the manifest cannot be written.
    """
    facts, change = read_manifest(path), perplexity_change(before, after)
    known = math.isfinite(change[0])
    facts["measured"] = {
        "text": text,
        "change": list(change) if known else None,
        "before": before.facts(),
        "after": after.facts(),
    }
    write_json(manifest_path(path), facts)
    return change


def quantized(models: Sequence[LocalModel]) -> dict[str, Quantized]:
    """The models that were made from another of `models`, by name; reads their manifests."""
    sources = {(model.path.name, model.size_bytes): model for model in reversed(models)}
    by_name = {}
    for model in models:
        facts = {} if model.url else read_manifest(model.path)
        try:
            source = _source(facts["source"], sources)
            is_of_it = facts["result"]["size_bytes"] == model.size_bytes
            if source is not None and source is not model and is_of_it:
                by_name[model.name] = _quantized(source, model, facts)
        except (LookupError, TypeError, ValueError, AttributeError):
            continue
    return by_name


def _source(
    facts: Mapping[str, Any], sources: Mapping[tuple[str, int], LocalModel]
) -> LocalModel | None:
    files = [(str(file["name"]), int(file["size_bytes"])) for file in facts["files"]]
    weights = sum(size for name, size in files if name.endswith(WEIGHTS))
    name = str(facts.get("name", files[0][0]))
    return sources.get((name, files[0][1])) or sources.get((name, weights))


def _quantized(source: LocalModel, model: LocalModel, facts: Mapping[str, Any]) -> Quantized:
    measured = facts.get("measured") or {}
    change = measured.get("change")
    return Quantized(
        source,
        model,
        str(measured.get("text", "")),
        (float(change[0]), float(change[1])) if change else None,
        _measured(measured.get("before")),
        _measured(measured.get("after")),
        is_converted=facts.get("method") == CONVERT,
    )


def _measured(facts: Mapping[str, Any] | None) -> Measured | None:
    if not facts:
        return None
    figures = [facts["perplexity"], facts["perplexity_error"]]  # JSON has no infinity.
    perplexity, error = (math.inf if one is None else float(one) for one in figures)
    return Measured(
        perplexity,
        error,
        float(facts["decode_tok_per_s"]),
        bool(facts["is_busy"]),
        int(facts.get("scored_tokens", 0)),
        int(facts.get("window_tokens", 0)),
        str(facts.get("backend", "")),
        int(facts.get("threads", 0)),
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the model at `path`; empty if there is none, or it cannot be read."""
    try:
        facts = json.loads(read_start(manifest_path(path), _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
