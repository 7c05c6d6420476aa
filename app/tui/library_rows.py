"""What the library screen lists: columns, rows, and a line or two about the chosen one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from textual.content import Content

from hearth.app import format as words
from hearth.app.library.catalogue import Entry
from hearth.app.library.downloads import DownloadItem
from hearth.app.library.fit import Fit, Speed
from hearth.app.library.hub import HubModel
from hearth.app.library.local import LocalModel
from hearth.app.tui.widgets.cells import bar, cell
from hearth.app.tui.widgets.column_list import Column, Row

_BAR: Final = 14
_LICENCE: Final = 14

HERE: Final = (
    Column("Name"),
    Column("Type", 7),
    Column("Size", 8, right=True),
    Column("Weights", 7, right=True, least=66),
    Column("Context", 9, right=True, least=88),
    Column("Last used", 10, least=76),
    Column("From", 11, least=104),
    Column("Repository", 38, least=150),
)
WORTH: Final = (
    Column("Name"),
    Column("Weights", 7, right=True, least=66),
    Column("Size", 14, right=True),
    Column("Quant", 7, least=110),
    Column("Fit", 7),
    Column("tok/s", 12, right=True, least=124),
    Column("Context", 9, right=True, least=96),
    Column("Licence", _LICENCE, least=78),
    Column("Repository", 38, least=170),
)
HUB: Final = (
    Column("Repository"),
    Column("Weights", 7, right=True, least=66),
    Column("Downloads", 11, right=True),
    Column("Likes", 7, right=True, least=90),
    Column("Licence", _LICENCE, least=54),
    Column("Access", 6, least=74),
    Column("Changed", 10, least=104),
)
DOWNLOADS: Final = (
    Column("Name"),
    Column("State", 11),
    Column("", _BAR, least=84),
    Column("Done", 19, right=True),
    Column("Rate", 11, right=True, least=74),
    Column("Left", 11, right=True, least=100),
)

_FIT_STYLES: Final = {
    "fits": "$text-success",
    "tight": "$text-warning",
    "slow": "$text-warning",
    "cannot": "$text-error",
}
_TOLD_OF: Final = {"waiting": "Waits for its turn.", "done": "It is under Here."}
_STATE_STYLES: Final = {"failed": "$text-error", "paused": "$text-warning", "done": "$text-success"}


def here_row(model: LocalModel, *, is_loaded: bool, used_at: float) -> Row:
    """A model of this machine.

    Args:
        used_at: seconds since 1970 of the last chat with it; 0: none is known.
    """
    used = Content.styled("loaded", "$text-success") if is_loaded else cell(_date(used_at))
    kind = "remote" if model.url else model.file_type
    return Row(
        model.name,
        (
            cell(model.name, "$text-error" if model.error else ""),
            cell("damaged" if model.error else kind, "$text-error" if model.error else ""),
            words.size(model.size_bytes) if model.size_bytes else "",
            words.count(model.parameters) if model.parameters else "",
            f"{model.context:,}" if model.context else "",
            used,
            cell(model.origin, "$text-muted"),
            cell(model.repo, "$text-muted"),
        ),
    )


def worth_row(entry: Entry, fit: Fit | None) -> Row:
    """A model of the catalogue; its size is about."""
    return Row(
        entry.name,
        (
            cell(entry.title),
            words.count(entry.parameters),
            f"about {words.size(entry.size_bytes)}",
            cell(entry.recommended),
            fit_cell(fit),
            speed_words(fit.speed) if fit is not None else "",
            f"{entry.context:,}" if entry.context else "",
            cell(entry.licence),
            cell(entry.repo, "$text-muted"),
        ),
    )


def hub_row(model: HubModel) -> Row:
    """A repository that a search found."""
    return Row(
        model.repo_id,
        (
            cell(model.repo_id),
            words.count(model.parameters) if model.parameters else "",
            f"{model.downloads:,}",
            f"{model.likes:,}",
            cell(model.licence or "not stated"),
            Content.styled("gated", "$text-warning") if model.gated else "open",
            model.changed_at.date().isoformat() if model.changed_at else "",
        ),
    )


def download_row(item: DownloadItem) -> Row:
    """A download."""
    share = item.done_bytes / item.total_bytes if item.total_bytes else 0.0
    state = item.activity or item.state
    return Row(
        item.id,
        (
            cell(item.name),
            cell(state, _STATE_STYLES.get(item.state, "")),
            bar(share, _BAR),
            f"{words.size(item.done_bytes)} of {words.size(item.total_bytes)}",
            f"{words.size(item.bytes_per_s)}/s" if item.bytes_per_s else "",
            words.duration(item.eta_s) if item.eta_s is not None else "",
        ),
    )


def fit_cell(fit: Fit | None) -> Content:
    """The state of a fit in a word."""
    if fit is None:
        return Content("")
    if fit.fits_on_disk is False:
        return Content.styled("no disk", "$text-error")
    return Content.styled(fit.state, _FIT_STYLES[fit.state])


def speed_words(speed: Speed | None) -> str:
    """Tokens a second that memory allows; empty where that was not measured."""
    if speed is None:
        return ""
    limit = "up to " if speed.is_limit else ""
    return f"{limit}{speed.tok_per_s:,.{1 if speed.tok_per_s < 10 else 0}f}"


def fit_line(fit: Fit) -> str:
    """A fit in a line, with where its speed comes from."""
    context = f"{fit.context:,} tokens of context"
    line = f"{fit.words} with {context}. {fit.reason}"
    if fit.speed is None:
        return line
    rate = speed_words(fit.speed)
    return f"{line} {rate[:1].upper()}{rate[1:]} tok/s ({fit.speed.source})."


def about_here(model: LocalModel, fit: Fit | None, width: int) -> str:
    """What is said of a chosen model of this machine.

    Args:
        width: of a line, in cells, which its path gets at most.
    """
    if model.error:
        return f"{model.error}\n{_where(model, width)}"
    if model.url:
        return f"A model of another machine, at {model.url}"
    return "\n".join(filter(None, (_where(model, width), fit_line(fit) if fit is not None else "")))


def about_entry(entry: Entry, fit: Fit | None) -> str:
    """What is said of a chosen model of the catalogue."""
    fitting = f"\nAbout: {fit_line(fit)}" if fit is not None else ""
    return f"{entry.summary} {entry.repo} · {entry.licence}{fitting}"


def about_hub(model: HubModel, endpoint: str) -> str:
    """What is said of a chosen repository."""
    licence = model.licence or "licence not stated"
    if not model.gated:
        return f"{model.repo_id} · {licence}"
    return (
        f"{model.repo_id} · {licence} · gated: accept its terms at {endpoint}/{model.repo_id} and "
        "set HF_TOKEN first."
    )


def about_download(item: DownloadItem) -> str:
    """What is said of a chosen download; its name too, which the list may have to cut."""
    if item.error is not None:
        told = f"{item.error.message} {item.error.hint}".strip()
    else:
        told = item.file or _TOLD_OF.get(item.state, "")
    return f"{item.name}\n{told}".strip()


def last_used(threads: Mapping[str, float], model: LocalModel) -> float:
    """When somebody last chatted with `model`; 0 if nobody is known to have."""
    return max(threads.get(model.name.lower(), 0.0), threads.get(str(model.path).lower(), 0.0))


def _where(model: LocalModel, width: int) -> str:
    home = str(Path.home())
    path = str(model.path)
    shown = _elided(f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path, width)
    return f"{shown} · {model.repo}" if model.repo else shown


def _elided(path: str, width: int) -> str:
    """`path`, without folders in its middle where it is longer than `width`: its beginning and its
    end tell more than the digits that caches call their folders.
    """
    folders = path.split("/")
    kept = len(folders)
    while len(path) > width and kept > 3:
        kept -= 1
        path = "/".join((*folders[: kept - 1], "…", folders[-1]))
    return path


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).date().isoformat() if seconds else ""
