"""The output of `hearth eval`: a table of the models, the conditions, and which model is better."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from hearth.app import format as words
from hearth.app.cli.output import Output

SESSIONS: Final = (1, 8)
"""Numbers of parallel sessions whose speed is measured."""
_BASELINE: Final = "bf16"
"""The method whose speed is the baseline, or the suffix of the name of the file it made."""


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Add to each speed its ratio to the baseline."""
    base = next((row["speed"]["tok_per_s"] for row in rows if _is_baseline(row)), None)
    if base is None:
        return
    for row in rows:
        if "speed" in row:
            row["speed"][f"ratio_to_{_BASELINE}"] = {
                sessions: round(rate / base[sessions], 3)
                for sessions, rate in row["speed"]["tok_per_s"].items()
            }


def _is_baseline(row: dict[str, Any]) -> bool:
    name = row["name"].lower()
    return "speed" in row and (name == _BASELINE or name.endswith(f"-{_BASELINE}"))


def print_report(output: Output, report: dict[str, Any]) -> None:
    """Print `report`, the object of `hearth eval --json`."""
    rows: list[tuple[str, ...]] = [tuple(title for title, _ in _COLUMNS)]
    rows += [
        tuple(cell(row) for _, cell in _COLUMNS) for row in report["rows"] if "error" not in row
    ]
    if len(rows) == 1:
        return
    used = [at for at in range(len(_COLUMNS)) if any(row[at] for row in rows[1:])]
    output.table([[row[at] for at in used] for row in rows], right=range(1, len(used)))
    protocol, text = report["protocol"], report["text"]
    output.note(
        f"Protocol {protocol['name']}: {protocol['windows']:,} windows of "
        f"{protocol['window_tokens']:,} tokens, {protocol['scored_tokens']:,} scored, on "
        f"{text['name']}; ± is a standard error over blocks of {protocol['error_block_tokens']}."
    )
    if (reference := report["reference"]) is not None:
        output.note(
            f"Reference: {reference['name']}, {reference['logits']}, perplexity "
            f"{_value(reference['perplexity'], '.3f')}."
        )
    for comparison in _neighbours(report):
        gap = comparison["difference"]
        what = "KL divergence" if comparison["of"] == "kl_divergence" else "Negative log likelihood"
        verdict = (
            f"{comparison['better']} is better than {comparison['than']}"
            if comparison["is_certain"]
            else f"no certain difference between {comparison['better']} and {comparison['than']}"
        )
        output.note(f"{verdict}: {what} {_value(gap, '+.5f')}.")
    if any(row.get("speed", {}).get("is_busy") for row in report["rows"]):
        output.note("Other programs used the processor: speeds are not comparable.")


def _neighbours(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The comparisons of neighbouring models in the order from best to worst."""
    wins = {row["name"]: 0 for row in report["rows"]}
    for comparison in report["comparisons"]:
        wins[comparison["better"]] += 1
    order = sorted(wins, key=lambda name: -wins[name])
    pairs = [{*pair} for pair in pairwise(order)]
    return [
        comparison
        for comparison in report["comparisons"]
        if {comparison["better"], comparison["than"]} in pairs
    ]


def _value(estimate: dict[str, float | None] | None, form: str) -> str:
    """A value with its standard error; empty if None."""
    if estimate is None:
        return ""
    if estimate["value"] is None:
        return "infinite"
    error = estimate["error"]
    return f"{estimate['value']:{form}} ± {0.0 if error is None else error:{form.lstrip('+')}}"


def _speed_cell(row: dict[str, Any], sessions: int) -> str:
    speed = row.get("speed")
    if speed is None:
        return ""
    rate = f"{speed['tok_per_s'][str(sessions)]:,.1f}"
    ratio = speed.get(f"ratio_to_{_BASELINE}")
    return rate if ratio is None else f"{rate} ({ratio[str(sessions)]:.2f})"


def _types_cell(row: dict[str, Any]) -> str:
    shares = row.get("types", {}).items()
    return " ".join(f"{kind} {share:.0%}" for kind, share in shares if share >= 0.005)


_COLUMNS: Final[tuple[tuple[str, Callable[[dict[str, Any]], str]], ...]] = (
    ("MODEL", lambda row: row["name"]),
    ("LOGITS", lambda row: row["logits"]),
    ("SIZE", lambda row: words.size(row["size_bytes"]) if "size_bytes" in row else ""),
    ("BITS", lambda row: f"{row['bits_per_weight']:.2f}" if "bits_per_weight" in row else ""),
    ("BYTES IN", _types_cell),
    ("PERPLEXITY", lambda row: _value(row["perplexity"], ".3f")),
    ("KL DIVERGENCE", lambda row: _value(row.get("kl_divergence"), ".5f")),
    ("SAME TOP", lambda row: _value(row.get("same_top"), ".4f")),
    ("RMS Δp", lambda row: _value(row.get("rms_delta_p"), ".4f")),
    ("MEMORY", lambda row: words.size(row["speed"]["rss_bytes"]) if "speed" in row else ""),
    *(
        (f"TOK/S × {sessions}", lambda row, sessions=sessions: _speed_cell(row, sessions))
        for sessions in SESSIONS
    ),
)
