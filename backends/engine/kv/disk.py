"""The disk tier: prefixes in files that outlive the process, handled by two threads of its own."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import suppress
from functools import partial
from typing import Final

from hearth.backends.engine.kv.disk_files import (
    DiskPart,
    KvFolder,
    PartData,
    ident_of,
    owner_of,
    part_name,
)
from hearth.backends.engine.kv.tree import TOKEN_TYPE, common_prefix

log = logging.getLogger(__name__)

MOST_QUEUED_BYTES: Final = 64 << 20
"""Maximum bytes of parts that wait to be written; no more are copied meanwhile."""
_SCRATCH_BYTES: Final = 512 << 10
"""Bytes that the read-ahead thread reads at once."""
BUDGET_S: Final = 3600.0
"""At most the whole budget is written per period of this many seconds, because disks wear out: a
server that computes prompts all day would write terabytes."""
_RETRY_S: Final = 60.0
"""Seconds without further attempts after a part could not be written."""
_SCAN_S: Final = 2.0
"""Maximum wait for the index after the start, in seconds; without the index nothing is found."""


class Load:
    """Parts to be read. A thread reads them into the system's page cache, one after the other, so
    that copying parts that were read does not wait for the disk.
    """

    def __init__(self, parts: Seq[DiskPart]) -> None:
        self.parts = parts
        self.has_failed = False
        """A part could not be read; no more parts follow."""
        self._is_over = False
        self._read = 0
        """Number of parts that were read."""

    def is_there(self, index: int) -> bool:
        """Whether the data of a part can be copied without waiting for the disk."""
        return index < self._read

    def end(self) -> None:
        """Stop reading; no more parts are needed."""
        self._is_over = True

    def read_ahead(
        self, came: Callable[[], None], damaged: Callable[[DiskPart, Exception], None]
    ) -> None:
        """Read the parts; runs in the reader thread."""
        scratch = memoryview(bytearray(_SCRATCH_BYTES))
        for part in self.parts:
            try:
                PartData(part).read_ahead(scratch, lambda: self._is_over)
            except OSError as error:
                self.has_failed = True
                damaged(part, error)
                return
            if self._is_over:
                return
            self._read += 1
            came()


class DiskTier:
    """The parts of one model on disk. All code but the two threads runs in the engine's thread.

    Parts are found by comparing token ids. A hit was written with the same model, KV type and
    namespace, because the names of parts are derived from these (`key` and namespace).

    Args:
        folder: where the parts are stored.
        key: everything that keys and values depend on besides namespace and tokens.
        name: display name of the model.
        clock: seconds.
    """

    def __init__(
        self,
        folder: KvFolder,
        key: bytes,
        name: str,
        budget_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._key = hashlib.blake2b(key).digest()
        self._name = name
        self.model = self._key[:12].hex()
        """Name of the model's folder."""
        self._clock = clock
        self._budget = budget_bytes
        self._allowance: float = budget_bytes
        self._allowed_at = clock()
        self._retry_at = -1.0
        self._lock = threading.Lock()
        """Guards the index and all counters."""
        self._below: dict[bytes, list[DiskPart]] = {}
        """The index: name of a part, or root of a namespace -> the parts that follow it."""
        self._known_owners: set[str] = set()
        """Owners whose folders exist."""
        self._deleted_owners: set[str] = set()
        """Owners whose folders were deleted with their chats; nothing is written for them."""
        self._made: tuple[int, int] | None = None
        """Result of `KvFolder.made` when the index was last correct."""
        self._queued_bytes = 0
        self.nbytes = 0
        """Bytes of the parts that can be read."""
        self.tokens = 0
        """Tokens of the parts that can be read."""
        self.written_bytes = 0
        """Bytes written since the start."""
        self.read_tokens = 0
        """Tokens copied into the KV cache since the start."""
        self._latest_tokens = 0
        self._wake: Callable[[], None] = lambda: None
        self._is_scanned = threading.Event()
        self._is_cleared = False
        """Whether everything was deleted since the start: what the scan found is not there then."""
        self._scan_until = clock() + _SCAN_S
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[Load] = queue.SimpleQueue()
        self._begin_threads()

    def _begin_threads(self) -> None:
        self._jobs.put(self._scan)
        for run, of in ((self._run_jobs, "KV writer"), (self._run_loads, "KV reader")):
            threading.Thread(target=run, name=of, daemon=True).start()

    def start(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when a part was read or there is room to write again."""
        self._wake = wake

    # ---- reading

    @property
    def latest_tokens(self) -> int:
        """Tokens of the longest prefix of the session that was last used before the start."""
        return self._latest_tokens if self._has_index() else 0

    def find(
        self, tokens: Seq[int], namespace: bytes, *, only_whole: bool = False
    ) -> list[tuple[DiskPart, int]]:
        """The path of parts that covers the most first tokens of `tokens`, each with the end of its
        match in `tokens`.

        Args:
            only_whole: parts are whole prefixes, all of whose tokens must match.
        """
        if not self._has_index():
            return []
        with self._lock:
            path = self._longest(tokens, namespace, "", only_whole=only_whole)
        if path:
            self._jobs.put(lambda: self._folder.touch([part for part, _ in path]))
        return path

    def load(self, parts: Seq[DiskPart]) -> Load:
        """Start to read `parts`."""
        load = Load(parts)
        self._loads.put(load)
        return load

    # ---- writing

    def begin(self, session: str) -> None:
        """Called when a sequence of `session` begins, for which parts will be `put`."""
        owner = owner_of(session)
        self._jobs.put(lambda: self._begin(owner))

    @property
    def has_room(self) -> bool:
        """Whether more may be `put` now. If not, `wake` is called when this may have changed."""
        is_behind = self._queued_bytes >= MOST_QUEUED_BYTES
        return self._is_scanned.is_set() and not is_behind and self.may_write

    @property
    def may_write(self) -> bool:
        """Whether the write allowance is not used up and no write has failed recently."""
        now = self._clock()
        more = (now - self._allowed_at) * self._budget / BUDGET_S
        self._allowance = min(self._allowance + more, self._budget)
        self._allowed_at = now
        return self._allowance > 0 and now >= self._retry_at

    def place(
        self, session: str, tokens: Seq[int], namespace: bytes, *, only_whole: bool = False
    ) -> tuple[bytes, int]:
        """The parent and the start of the next part of `tokens` to write for `session`; the tokens
        before that are already written or queued. Requires the index, see `has_room`.
        """
        owner = owner_of(session)
        with self._lock:
            if owner in self._deleted_owners:
                return b"", len(tokens)
            path = self._longest(tokens, namespace, owner, only_whole=only_whole)
        if path:
            self._jobs.put(lambda: self._folder.touch([part for part, _ in path]))
        if not path or only_whole:
            return self._root(namespace), path[-1][1] if path else 0
        part, end = path[-1]
        return part.ident, end

    def put(
        self,
        session: str,
        parent: bytes,
        start: int,
        tokens: Seq[int],
        meta: bytes,
        data: memoryview,
        *,
        is_whole: bool = False,
    ) -> bytes:
        """Write `data`, which belongs to `tokens`, as a part after `parent`; returns its name.

        Args:
            is_whole: parts are whole prefixes; of this session's shorter ones that `tokens` begin
                with, only the longest is kept.
        """
        ids = array(TOKEN_TYPE, tokens)
        ident = ident_of(parent, start, ids)
        path = self._folder.path / self.model / owner_of(session) / part_name(start, ident)
        part = DiskPart(path, parent, ident, start, ids, meta, data.nbytes)
        with self._lock:
            siblings = self._below.setdefault(parent, [])
            shorter = [
                one
                for one in siblings
                if is_whole and one.owner == part.owner and one.tokens == ids[: len(one.tokens)]
            ]
            shorter.sort(key=lambda one: len(one.tokens))
            for one in shorter[:-1]:
                self._forget(one)
                self._jobs.put(partial(one.path.unlink, missing_ok=True))
            siblings.append(part)
            self._queued_bytes += part.nbytes
        self._allowance -= part.nbytes
        self._jobs.put(lambda: self._write(part, data))
        return ident

    def clear(self) -> None:
        """Delete all parts of this model."""
        with self._lock:
            for part in [part for parts in self._below.values() for part in parts]:
                self._forget(part)
            self._below.clear()
            self._known_owners.clear()
            self._is_cleared = True
        self._jobs.put(self._clear)

    def flush(self) -> None:
        """Wait until everything that was `put` is written or has failed."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait()

    # ---- internals

    def _has_index(self) -> bool:
        """Whether the folder was scanned; waits for the scan until `_SCAN_S` after the start."""
        return self._is_scanned.wait(max(0.0, self._scan_until - self._clock()))

    def _root(self, namespace: bytes) -> bytes:
        """The `parent` of the first parts of a namespace."""
        return hashlib.blake2b(namespace, key=self._key, digest_size=16).digest()

    def _longest(
        self, tokens: Seq[int], namespace: bytes, owner: str, *, only_whole: bool
    ) -> list[tuple[DiskPart, int]]:
        """See `find`. With an `owner`, searches only its parts, including queued ones; if `owner`
        is empty, searches the written parts of all owners.
        """
        wanted = array(TOKEN_TYPE, tokens)
        best: _Step | None = None
        pending: list[_Step | None] = [None]
        seen: set[bytes] = set()
        while pending:
            step = pending.pop()
            parent, matched = (self._root(namespace), 0) if step is None else step[1:3]
            for part in self._below.get(parent, ()):
                is_usable = part.owner == owner if owner else part.is_durable
                if not is_usable or part.start > matched or part.ident in seen:
                    continue
                common = common_prefix(part.tokens, wanted, 0, part.start)
                if common == 0 or (only_whole and common < len(part.tokens)):
                    continue
                seen.add(part.ident)
                next_step = (step, part.ident, part.start + common, part)
                pending.append(next_step)
                if best is None or next_step[2] > best[2]:
                    best = next_step
        path = []
        while best is not None:
            best, _, end, part = best
            path.append((part, end))
        return path[::-1]

    def _forget(self, part: DiskPart) -> None:
        """Remove `part`, and the same owner's parts after it, from the index. Requires the lock."""
        pending = [part]
        while pending:
            part = pending.pop()
            siblings = self._below.get(part.parent, [])
            if part not in siblings:
                continue
            siblings.remove(part)
            if part.is_durable:
                self.nbytes -= part.nbytes
                self.tokens -= len(part.tokens)
                part.is_durable = False
            below = self._below.get(part.ident, ())
            pending += [child for child in below if child.owner == part.owner]

    def _count(self, part: DiskPart) -> None:
        self.nbytes += part.nbytes
        self.tokens += len(part.tokens)

    def _run_jobs(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception:
                log.exception("writing keys and values to disk")

    def _run_loads(self) -> None:
        while True:
            try:
                self._loads.get().read_ahead(self._wake, self.damaged)
            except Exception:
                log.exception("reading keys and values from disk")

    def damaged(self, part: DiskPart, error: Exception) -> None:
        """Drop `part`, which cannot be read, and the parts after it. From any thread."""
        log.warning("keys and values on disk cannot be used: %s", error)
        with self._lock:
            self._forget(part)
        self._wake()
        with suppress(OSError):
            part.path.unlink()

    def _scan(self) -> None:
        parts: list[DiskPart] = []
        try:
            self._made = self._folder.made(self.model)
            parts = self._folder.scan(self.model)
            latest = self._folder.latest(parts)
            self._latest_tokens = max((one.start + len(one.tokens) for one in latest), default=0)
        except OSError as error:
            log.warning("keys and values on disk cannot be listed: %s", error)
        with self._lock:
            for part in [] if self._is_cleared else parts:
                self._below.setdefault(part.parent, []).append(part)
                self._count(part)
                self._known_owners.add(part.owner)
        self._is_scanned.set()
        self._wake()

    def _begin(self, owner: str) -> bool:
        """Create the folder of `owner` if needed; False if that fails."""
        if owner not in self._known_owners:
            try:
                self._folder.begin(self.model, owner, self._name)
            except OSError as error:
                self._refused(error)
                return False
            self._was_cleared()
            self._known_owners.add(owner)
        return True

    def _write(self, part: DiskPart, data: memoryview) -> None:
        try:
            with self._lock:
                is_wanted = part in self._below.get(part.parent, ())
            may_write = is_wanted and self._clock() >= self._retry_at
            if not may_write or not self._write_now(part, data):
                with self._lock:
                    self._forget(part)
        finally:
            with self._lock:
                self._queued_bytes -= part.nbytes
            self._wake()

    def _write_now(self, part: DiskPart, data: memoryview) -> bool:
        """Whether `part` was written."""
        if not self._begin(part.owner):  # Needed again if all was cleared since the session began.
            return False
        try:
            evicted = set(self._folder.write(part, data))
        except FileNotFoundError:
            self._gone(part.owner)
            return False
        except OSError as error:
            self._refused(error)
            return False
        with self._lock:
            self.written_bytes += part.nbytes
            if part in self._below.get(part.parent, ()):  # Otherwise `_clear` comes next.
                part.is_durable = True
                self._count(part)
            if evicted:
                for one in [one for parts in self._below.values() for one in parts]:
                    if one.path in evicted:
                        self._forget(one)
        return True

    def _gone(self, owner: str) -> None:
        """The folder of `owner` was deleted: with its chat, unless the whole model was cleared."""
        if self._was_cleared():
            return
        with self._lock:
            for part in [part for parts in self._below.values() for part in parts]:
                if part.owner == owner:
                    self._forget(part)
            self._deleted_owners.add(owner)

    def _was_cleared(self) -> bool:
        """Whether everything of this model was deleted since the last call; if so, the deleted
        parts are removed from the index.
        """
        before, self._made = self._made, self._folder.made(self.model)
        if before is None or before == self._made:
            return False
        with self._lock:
            for part in [part for parts in self._below.values() for part in parts]:
                if part.is_durable:
                    self._forget(part)
            self._known_owners.clear()
        return True

    def _clear(self) -> None:
        try:
            self._folder.clear(self.model)
            self._made = None
            self._known_owners.clear()  # An owner may have begun before.
        except OSError as error:
            log.warning("keys and values on disk cannot be deleted: %s", error)

    def _refused(self, error: OSError) -> None:
        log.warning("keys and values are not written to disk for now: %s", error)
        self._retry_at = self._clock() + _RETRY_S


_Step = tuple["_Step | None", bytes, int, DiskPart]
"""A step of the search: the previous step, the name of its part, the end of the match, the part."""
