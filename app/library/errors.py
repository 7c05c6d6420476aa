"""Errors of finding, downloading and storing models."""

from __future__ import annotations

from hearth.app.exit_codes import ExitCode
from hearth.backends.errors import HearthError, ModelNotFound, UnsupportedModel


class OfflineError(HearthError):
    """An operation needs the network, but Hearth is set to stay offline."""

    code = "offline"
    exit_code = ExitCode.NETWORK
    http_status = 403

    def __init__(self, message: str, hint: str = "", **data: object) -> None:
        hint = hint or "Leave out --offline, or unset HF_HUB_OFFLINE and the offline setting."
        super().__init__(message, hint, **data)


class HubUnreachable(HearthError):
    """The Hub, or a server it redirected to, cannot be reached or breaks off again and again."""

    code = "hub_unreachable"
    exit_code = ExitCode.NETWORK
    http_status = 503

    def __init__(self, message: str, hint: str = "", **data: object) -> None:
        super().__init__(message, hint, **{"retry_after_s": 30, **data})


class HubRefused(HearthError):
    """The Hub refused the request: a wrong token, a wrong request, or a rate limit."""

    code = "hub_refused"
    exit_code = ExitCode.NETWORK
    http_status = 502


class IndexUnreachable(HearthError):
    """No Python package index, or folder of packages, delivers the file of a model."""

    code = "index_unreachable"
    exit_code = ExitCode.NETWORK
    http_status = 503


class RepositoryNotFound(ModelNotFound):
    """No repository has that name, or it is private and the token gives no access."""

    code = "repository_not_found"


class GatedRepository(HearthError):
    """The files are available only after accepting the licence, at `url` in `data`."""

    code = "gated_repository"
    http_status = 403


class RepositoryChanged(HearthError):
    """The Hub serves a different content than it listed."""

    code = "repository_changed"
    http_status = 502


class RefusedRepository(UnsupportedModel):
    """A repository has no model that Hearth can use; the message gives the reason."""

    code = "refused_repository"


class ChoiceNotFound(ModelNotFound):
    """A repository has no such quantization or file; `nearest` in `data` has similar ones."""

    code = "choice_not_found"


class UnsafeName(HearthError):
    """A name from the Hub is unusable: it leads out of its folder, or cannot be stored."""

    code = "unsafe_name"
    http_status = 422


class DiskFull(HearthError):
    """Too little disk space; `data` has the needed and free bytes. Downloaded bytes are kept."""

    code = "disk_full"
    http_status = 507


class DownloadCorrupt(HearthError):
    """The downloaded content had a wrong checksum, twice."""

    code = "download_corrupt"
    http_status = 502


class DownloadNotFound(HearthError):
    """The queue of downloads has no download with that id."""

    code = "download_not_found"
    exit_code = ExitCode.USAGE
    http_status = 404


class QueueHeld(HearthError):
    """Another process of Hearth is the keeper of the queue of downloads."""

    code = "queue_held"
    http_status = 409


class QueueUnreadable(HearthError):
    """The file of the queue of downloads is damaged."""

    code = "queue_unreadable"


class LibraryNotRead(HearthError):
    """The first scan of the model folders has not ended yet; `data` has `retry_after_s`."""

    code = "library_not_read"
    http_status = 503


class ModelInUse(HearthError):
    """The model is loaded, so its files must stay."""

    code = "model_in_use"
    http_status = 409


class FileTrouble(HearthError):
    """A file could not be read or written."""

    code = "file_trouble"
