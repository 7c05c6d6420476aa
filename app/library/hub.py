"""Searches the Hugging Face Hub, and lists the files of one repository.

Endpoint, token, proxies, certificates and offline mode are those of huggingface_hub
(`HF_ENDPOINT`, `HF_TOKEN`, `HTTPS_PROXY`, `SSL_CERT_FILE`, `HF_HUB_OFFLINE`), which is imported
when first needed, with its telemetry off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from hearth.app.library.errors import (
    GatedRepository,
    HubRefused,
    HubUnreachable,
    OfflineError,
    RepositoryChanged,
    RepositoryNotFound,
)
from hearth.backends.errors import HearthError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

_PLAIN: Final = frozenset({"F64", "F32", "F16", "BF16"})
_EXPAND: Final = ("downloads", "likes", "gated", "tags", "lastModified", "gguf", "safetensors")
_LICENCE_TAG: Final = "license:"
_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository in the results of a search.

    Attributes:
        licence: identifier of the licence, such as "apache-2.0"; empty if unknown.
        parameters: number of weights; None if the Hub does not know it.
    """

    repo_id: str
    downloads: int
    likes: int
    gated: bool
    licence: str
    changed_at: datetime | None
    parameters: int | None = None


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    """One file of a repository.

    Attributes:
        sha256: hash of the content of files in LFS; None for small files.
        blob_id: git's SHA-1 of the content, or of the pointer for a file in LFS.
    """

    path: str
    size_bytes: int
    sha256: str | None
    blob_id: str

    @property
    def etag(self) -> str:
        """The name of the content in the cache, which the Hub sends as its ETag."""
        return self.sha256 or self.blob_id


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit, with all its files.

    Attributes:
        revision: the requested branch, tag or commit.
        commit: 40 hexadecimal digits.
        parameters: number of weights; None if the Hub does not know it.
        context: trained context in tokens; None if the Hub does not know it.
        is_quantized: whether most numbers in its safetensors are quantized (GPTQ, FP8 ...).
    """

    repo_id: str
    revision: str
    commit: str
    gated: bool
    licence: str
    files: tuple[RepositoryFile, ...]
    parameters: int | None = None
    context: int | None = None
    is_quantized: bool = False


@dataclass(frozen=True, slots=True)
class Download:
    """The files of one commit to download.

    Attributes:
        revision: the revision that resolved to `commit`; it is recorded in the cache.
    """

    repo_id: str
    revision: str
    commit: str
    files: tuple[RepositoryFile, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Hub:
    """A Hugging Face Hub.

    Attributes:
        offline: whether to open no connection.
        address: address of a Hub to use instead of `HF_ENDPOINT`.
    """

    offline: bool = False
    address: str | None = None

    @property
    def endpoint(self) -> str:
        """`address`, or `HF_ENDPOINT`, or the public Hub's address, without a slash at the end."""
        named = self.address or os.environ.get("HF_ENDPOINT")
        return (named or "https://huggingface.co").rstrip("/")

    def search(self, query: str, *, limit: int = 30, tag: str | None = None) -> list[HubModel]:
        """The models whose names contain `query`, at most `limit` of them, trending ones first.

        Args:
            tag: only return models with this tag, such as "gguf".

        Raises:
            OfflineError, HubUnreachable, HubRefused: the search failed.
        """
        self.require_online("Searching the Hub needs a connection.")
        parameters: dict[str, Any] = {
            "search": query,
            "limit": limit,
            "sort": "trendingScore",
            "expand": list(_EXPAND),
            **({} if tag is None else {"filter": tag}),
        }
        with hub_errors(query, self.endpoint):
            from huggingface_hub import get_session
            from huggingface_hub.hf_api import ModelInfo
            from huggingface_hub.utils import (  # type: ignore[attr-defined]
                build_hf_headers,
                hf_raise_for_status,
            )

            # HfApi.list_models takes no timeout, and huggingface_hub's client has none (2.4.0).
            response = get_session().get(
                f"{self.endpoint}/api/models",
                params=parameters,
                headers=build_hf_headers(library_name="hearth"),
                timeout=_TIMEOUT_S,
            )
            hf_raise_for_status(response)
            make: Callable[..., ModelInfo] = ModelInfo
            return [_model(make(**item)) for item in response.json()[:limit]]

    def repository(self, repo_id: str, revision: str = "main") -> Repository:
        """The present state of `repo_id` at `revision`, with the size and checksum of each file.

        Raises:
            RepositoryNotFound: it does not exist, is private, or has no such revision.
            GatedRepository: even its list of files requires accepting the licence.
            OfflineError, HubUnreachable, HubRefused: the request failed.
        """
        if repo_id.startswith("pypi.org/"):
            return _package_repository(repo_id, revision)
        self.require_online(f"Looking up {repo_id} on the Hub needs a connection.")
        with hub_errors(repo_id, self.endpoint):
            from huggingface_hub import HfApi

            api = HfApi(endpoint=self.endpoint, library_name="hearth")
            info = api.model_info(
                repo_id, revision=revision, timeout=_TIMEOUT_S, files_metadata=True
            )
            return _repository(info, revision)

    def require_online(self, message: str) -> None:
        """Raises `OfflineError` with `message` if no connection may be opened."""
        prepare_library()
        from huggingface_hub.constants import is_offline_mode

        if self.offline or is_offline_mode():
            raise OfflineError(message)


def prepare_library() -> None:
    """Disable telemetry; to be called before huggingface_hub is imported.

    When imported, huggingface_hub reads whether it may send telemetry and look up agents, once a
    day, on its own.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


@contextmanager
def hub_errors(name: str, endpoint: str) -> Iterator[None]:
    """Converts exceptions of huggingface_hub within the block to errors of Hearth.

    Args:
        name: the repository, or the search query.
        endpoint: the Hub's address, for hints.
    """
    prepare_library()
    import httpx2
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except OfflineModeIsEnabled as error:
        raise OfflineError("The Hub is not asked: huggingface_hub is offline.") from error
    except HFValidationError as error:
        raise RepositoryNotFound(
            f'"{name}" is not the name of a repository.',
            "Names look like organisation/name; `hearth pull` searches for anything else.",
        ) from error
    except GatedRepoError as error:
        url = f"{endpoint}/{quote(name)}"
        raise GatedRepository(
            f"{name} is gated: its files are for those who accepted its licence.",
            f"Accept it at {url}, make a token at {endpoint}/settings/tokens, and set HF_TOKEN.",
            url=url,
        ) from error
    except RevisionNotFoundError as error:
        raise RepositoryNotFound(
            f"{name} has no such revision.", f"See {endpoint}/{quote(name)}/tree/main."
        ) from error
    except RemoteEntryNotFoundError as error:
        raise RepositoryChanged(
            f"{name} does not have a file that it had listed.", "Look it up again."
        ) from error
    except RepositoryNotFoundError as error:
        raise RepositoryNotFound(
            f"The Hub at {endpoint} has no repository {name}, or it is private.",
            "Check the name; for a private one set HF_TOKEN.",
            name=name,
        ) from error
    except HfHubHTTPError as error:
        raise _refusal(error.response.status_code, name, endpoint) from error
    except httpx2.HTTPError as error:
        raise HubUnreachable(
            f"{endpoint} cannot be reached: {error or type(error).__name__}.",
            "Check the connection, HTTPS_PROXY and HF_ENDPOINT; models that are here work without.",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise HubUnreachable(
            f"What answers at {endpoint} is not a Hub: {type(error).__name__}.",
            "Check HF_ENDPOINT, and whether the network wants a login in a browser first.",
        ) from error


def _refusal(status: int, name: str, endpoint: str) -> HearthError:
    if status >= 500:
        return HubUnreachable(
            f"{endpoint} is in trouble (HTTP {status}).", "Try again later.", status=status
        )
    hints = {
        401: f"The token in HF_TOKEN is not valid: make one at {endpoint}/settings/tokens.",
        403: "The token in HF_TOKEN may not do this.",
        429: "Too many requests: try again in a few minutes, or set HF_TOKEN.",
    }
    hint = hints.get(status, "Try again; if it stays, look at the Hub's web page.")
    return HubRefused(f"The Hub refused {name} (HTTP {status}).", hint, status=status)


def _package_repository(repo_id: str, revision: str) -> Repository:
    """The repository that represents a model on the Python package index.

    Raises `RepositoryNotFound`.
    """
    from hearth.app.library.package_model import SMOLLM2

    if repo_id != SMOLLM2.repo or revision != "main":
        raise RepositoryNotFound(
            f"There is no {repo_id} at {revision}.", f"There is {SMOLLM2.repo} at main."
        )
    file = RepositoryFile(
        PurePosixPath(SMOLLM2.member).name, SMOLLM2.wheel_bytes, SMOLLM2.model_sha256, ""
    )
    return Repository(
        repo_id=repo_id,
        revision=revision,
        commit=SMOLLM2.wheel_sha256[:40],
        gated=False,
        licence="apache-2.0",
        files=(file,),
        parameters=134_515_008,
        context=8192,
    )


def _model(info: ModelInfo) -> HubModel:
    return HubModel(
        repo_id=info.id,
        downloads=info.downloads or 0,
        likes=info.likes or 0,
        gated=bool(info.gated),
        licence=_licence(info),
        changed_at=info.last_modified,
        parameters=_parameters(info),
    )


def _repository(info: ModelInfo, revision: str) -> Repository:
    files = []
    for sibling in info.siblings or ():
        size = sibling.lfs.size if sibling.lfs is not None else sibling.size
        if size is None or sibling.blob_id is None:
            raise HubRefused(
                f"The Hub does not say how large {sibling.rfilename} of {info.id} is.",
                "An endpoint of HF_ENDPOINT must answer `blobs=true` as huggingface.co does.",
            )
        sha256 = sibling.lfs.sha256 if sibling.lfs is not None else None
        files.append(RepositoryFile(sibling.rfilename, size, sha256, sibling.blob_id))
    if info.sha is None:
        raise HubRefused(f"The Hub does not say at which commit {info.id} is.", "Try again.")
    return Repository(
        repo_id=info.id,
        revision=revision,
        commit=info.sha,
        gated=bool(info.gated),
        licence=_licence(info),
        files=tuple(files),
        parameters=_parameters(info),
        context=_number((info.gguf or {}).get("context_length")),
        is_quantized=_is_quantized(info),
    )


def _is_quantized(info: ModelInfo) -> bool:
    counts = {} if info.safetensors is None else info.safetensors.parameters
    plain = sum(count for kind, count in counts.items() if kind in _PLAIN)
    return sum(counts.values()) > 2 * plain


def _licence(info: ModelInfo) -> str:
    tags = (tag for tag in info.tags or () if tag.startswith(_LICENCE_TAG))
    return next(tags, "").removeprefix(_LICENCE_TAG)


def _parameters(info: ModelInfo) -> int | None:
    known = _number((info.gguf or {}).get("total"))
    return known or (_number(info.safetensors.total) if info.safetensors is not None else None)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
