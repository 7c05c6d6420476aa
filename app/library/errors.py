"""What can go wrong while models are looked for, downloaded and kept."""

from __future__ import annotations

from hearth.app.exit_codes import ExitCode
from hearth.backends.errors import HearthError, ModelNotFound, UnsupportedModel


class OfflineError(HearthError):
    """Something needs the network, and Hearth was told to stay offline."""

    code = "offline"
    exit_code = ExitCode.NETWORK
    http_status = 403

    def __init__(self, message: str, hint: str = "", **data: object) -> None:
        hint = hint or "Leave out --offline, or unset HF_HUB_OFFLINE and the offline setting."
        super().__init__(message, hint, **data)


class HubUnreachable(HearthError):
    """The Hub, or what it pointed at, cannot be reached or breaks off again and again."""

    code = "hub_unreachable"
    exit_code = ExitCode.NETWORK
    http_status = 503

    def __init__(self, message: str, hint: str = "", **data: object) -> None:
        super().__init__(message, hint, **{"retry_after_s": 30, **data})


class HubRefused(HearthError):
    """The Hub answered, and it was no: a wrong token, a wrong request, a rate limit."""

    code = "hub_refused"
    exit_code = ExitCode.NETWORK
    http_status = 502


class IndexUnreachable(HearthError):
    """No Python package index, or folder of packages, delivers the file of a model."""

    code = "index_unreachable"
    exit_code = ExitCode.NETWORK
    http_status = 503


class RepositoryNotFound(ModelNotFound):
    """No repository goes by that name, or it is private and the token does not open it."""

    code = "repository_not_found"


class GatedRepository(HearthError):
    """The files are there for those who accepted the licence; `url` in `data` is where."""

    code = "gated_repository"
    http_status = 403


class RepositoryChanged(HearthError):
    """What the Hub serves is not what it had listed."""

    code = "repository_changed"
    http_status = 502


class RefusedRepository(UnsupportedModel):
    """A repository has nothing that Hearth takes; the message says why."""

    code = "refused_repository"


class ChoiceNotFound(ModelNotFound):
    """A repository has no such quant or file; `nearest` in `data` has those that are like it."""

    code = "choice_not_found"


class UnsafeName(HearthError):
    """A name from the Hub cannot be one here: it leads out of its folder, or cannot be stored."""

    code = "unsafe_name"
    http_status = 422


class DiskFull(HearthError):
    """Not enough room on the disk; both numbers are in `data`. What was downloaded is kept."""

    code = "disk_full"
    http_status = 507


class DownloadCorrupt(HearthError):
    """What arrived has the wrong checksum, twice."""

    code = "download_corrupt"
    http_status = 502


class DownloadNotFound(HearthError):
    """The queue of downloads has nothing by that id."""

    code = "download_not_found"
    exit_code = ExitCode.USAGE
    http_status = 404


class QueueHeld(HearthError):
    """Another process of Hearth looks after the queue of downloads."""

    code = "queue_held"
    http_status = 409


class QueueUnreadable(HearthError):
    """The file of the queue of downloads is damaged."""

    code = "queue_unreadable"


class LibraryNotRead(HearthError):
    """No scan of the model folders has ended yet; `retry_after_s` in `data`."""

    code = "library_not_read"
    http_status = 503


class ModelInUse(HearthError):
    """The model is loaded, so its files must stay."""

    code = "model_in_use"
    http_status = 409


class FileTrouble(HearthError):
    """A file could not be read or written."""

    code = "file_trouble"
