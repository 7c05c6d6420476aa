"""The disk tier: prefixes in files that outlive the process, written and read in threads of its
own.
"""

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
    part_path,
)
from hearth.backends.engine.kv.tree import TOKEN_TYPE, common_prefix

log = logging.getLogger(__name__)

MOST_QUEUED_BYTES: Final = 64 << 20
"""Of parts that wait to be written; no more are copied meanwhile."""
_SCRATCH_BYTES: Final = 512 << 10
"""What the thread that reads ahead reads at once."""
BUDGET_S: Final = 3600.0
"""Within such a time no more is written than the whole budget, as a disk wears out: a server that
computes prompts all day would write terabytes."""
_RETRY_S: Final = 60.0
"""After a part could not be written, none is tried for so long."""
_SCAN_S: Final = 2.0
"""The longest wait for the index after the start; without it nothing is found."""


class Load:
    """Parts that are wanted. A thread has them in the system's page cache, one after the other, so
    that copying what it is done with waits for no disk.
    """

    def __init__(self, parts: Seq[DiskPart]) -> None:
        self.parts = parts
        self.has_failed = False
        """No more come."""
        self._is_over = False
        self._read = 0
        """Parts that the thread is done with."""

    def is_there(self, index: int) -> bool:
        """Whether the data of a part can be copied without waiting for the disk."""
        return index < self._read

    def end(self) -> None:
        """No more parts are wanted."""
        self._is_over = True

    def read_ahead(
        self, came: Callable[[], None], damaged: Callable[[DiskPart, Exception], None]
    ) -> None:
        """Read them, in the thread of the reader."""
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
    """The parts of one model on disk. All but the two threads is of the engine's thread.

    What is found compares token ids, and was written with the same model, kind of keys and values
    and namespace: `key` has all of that, and names of parts follow from it.

    Args:
        folder: where the parts are.
        key: all that keys and values depend on besides namespace and tokens.
        name: what people call the model.
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
        """Its folder."""
        self._clock = clock
        self._budget = budget_bytes
        self._allowance: float = budget_bytes
        self._allowed_at = clock()
        self._retry_at = -1.0
        self._lock = threading.Lock()
        """Guards the index and all that is counted."""
        self._below: dict[bytes, list[DiskPart]] = {}
        """The parts after each part, by its name, and after the root of each namespace."""
        self._known_owners: set[str] = set()
        """Those whose folders are there."""
        self._deleted_owners: set[str] = set()
        """Those whose folders were deleted, with their chats: nothing is written for them."""
        self._made: tuple[int, int] | None = None
        """What `KvFolder.made` said when the index was right."""
        self._queued_bytes = 0
        self.nbytes = 0
        """Of the parts that can be read."""
        self.tokens = 0
        """Of these."""
        self.written_bytes = 0
        """Since the start."""
        self.read_tokens = 0
        """Copied into the KV cache since the start."""
        self._latest_tokens = 0
        self._wake: Callable[[], None] = lambda: None
        self._is_scanned = threading.Event()
        self._scan_until = clock() + _SCAN_S
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[Load] = queue.SimpleQueue()
        self._begin_threads()

    def _begin_threads(self) -> None:
        self._jobs.put(self._scan)
        for run, of in ((self._run_jobs, "KV writer"), (self._run_loads, "KV reader")):
            threading.Thread(target=run, name=of, daemon=True).start()

    def start(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when a part came or there is room to write again."""
        self._wake = wake

    # ---- what is found

    @property
    def latest_tokens(self) -> int:
        """Tokens of the longest prefix of the session that was used last before the start."""
        return self._latest_tokens if self._has_index() else 0

    def find(
        self, tokens: Seq[int], namespace: bytes, *, only_whole: bool = False
    ) -> list[tuple[DiskPart, int]]:
        """The parts that have the most first tokens of `tokens`, and up to which token of these
        each is the same.

        Args:
            only_whole: parts are whole prefixes, of which all tokens must be the same.
        """
        if not self._has_index():
            return []
        with self._lock:
            path = self._longest(tokens, namespace, "", only_whole=only_whole)
        if path:
            self._jobs.put(lambda: self._folder.touch([part for part, _ in path]))
        return path

    def load(self, parts: Seq[DiskPart]) -> Load:
        """Begin to read `parts`."""
        load = Load(parts)
        self._loads.put(load)
        return load

    # ---- what is written

    def begin(self, session: str) -> None:
        """A sequence of `session` begins, of which something will be `put`."""
        owner = owner_of(session)
        self._jobs.put(lambda: self._begin(owner))

    @property
    def has_room(self) -> bool:
        """Whether more may be `put` now. If not, `wake` is called when that may have changed."""
        is_behind = self._queued_bytes >= MOST_QUEUED_BYTES
        return self._is_scanned.is_set() and not is_behind and self.may_write

    @property
    def may_write(self) -> bool:
        """Whether the disk takes anything, and not too much was written already."""
        now = self._clock()
        more = (now - self._allowed_at) * self._budget / BUDGET_S
        self._allowance = min(self._allowance + more, self._budget)
        self._allowed_at = now
        return self._allowance > 0 and now >= self._retry_at

    def place(
        self, session: str, tokens: Seq[int], namespace: bytes, *, only_whole: bool = False
    ) -> tuple[bytes, int]:
        """After which part of `session` the next one of `tokens` comes, and at which token: all
        before it are written already, or about to be. Only with the index, see `has_room`.
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
        """Write `data`, of `tokens`, after `parent`; returns the name of the part.

        Args:
            is_whole: parts are whole prefixes: of those of this session that `tokens` begin with
                only the longest stays.
        """
        ids = array(TOKEN_TYPE, tokens)
        ident = ident_of(parent, start, ids)
        folder = self._folder.path / self.model / owner_of(session)
        path = part_path(folder, start, ident)
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
        self._jobs.put(self._clear)

    def flush(self) -> None:
        """Wait until all that was `put` is written, or could not be."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait()

    # ---- inside

    def _has_index(self) -> bool:
        """Whether the folder was scanned; waits for that, but not later than a while after the
        start.
        """
        return self._is_scanned.wait(max(0.0, self._scan_until - self._clock()))

    def _root(self, namespace: bytes) -> bytes:
        """The `parent` of the first parts of a namespace."""
        return hashlib.blake2b(namespace, key=self._key, digest_size=16).digest()

    def _longest(
        self, tokens: Seq[int], namespace: bytes, owner: str, *, only_whole: bool
    ) -> list[tuple[DiskPart, int]]:
        """See `find`; of `owner` only, with what is not written yet, or of all if that is empty."""
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
                found = (step, part.ident, part.start + common, part)
                pending.append(found)
                if best is None or found[2] > best[2]:
                    best = found
        path = []
        while best is not None:
            best, _, end, part = best
            path.append((part, end))
        return path[::-1]

    def _forget(self, part: DiskPart) -> None:
        """Take `part`, and what comes after it, out of the index. Only with the lock."""
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
        """`part` cannot be read, nor what comes after it. From any thread."""
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
            for part in parts:
                self._below.setdefault(part.parent, []).append(part)
                self._count(part)
                self._known_owners.add(part.owner)
        self._is_scanned.set()
        self._wake()

    def _begin(self, owner: str) -> bool:
        """Have a folder of `owner`; False if it cannot be made."""
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
            if is_wanted and self._clock() >= self._retry_at:
                self._write_now(part, data)
            else:
                with self._lock:
                    self._forget(part)
        finally:
            with self._lock:
                self._queued_bytes -= part.nbytes
            self._wake()

    def _write_now(self, part: DiskPart, data: memoryview) -> None:
        if not self._begin(part.owner):  # As all was cleared since the session began.
            with self._lock:
                self._forget(part)
            return
        try:
            evicted = set(self._folder.write(part, data))
        except FileNotFoundError:
            with self._lock:
                self._forget(part)
            self._gone(part.owner)
            return
        except OSError as error:
            with self._lock:
                self._forget(part)
            self._refused(error)
            return
        with self._lock:
            self.written_bytes += part.nbytes
            if part in self._below.get(part.parent, ()):  # Else `_clear` comes next.
                part.is_durable = True
                self._count(part)
            if evicted:
                for one in [one for parts in self._below.values() for one in parts]:
                    if one.path in evicted:
                        self._forget(one)

    def _gone(self, owner: str) -> None:
        """The folder of `owner` was deleted: with its chat, unless all of the model's were."""
        if self._was_cleared():
            return
        with self._lock:
            for part in [part for parts in self._below.values() for part in parts]:
                if part.owner == owner:
                    self._forget(part)
            self._deleted_owners.add(owner)

    def _was_cleared(self) -> bool:
        """Whether all of this model was deleted since this was asked; then the index has nothing of
        that any more.
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
            self._known_owners.clear()  # One may have begun before.
        except OSError as error:
            log.warning("keys and values on disk cannot be deleted: %s", error)

    def _refused(self, error: OSError) -> None:
        log.warning("keys and values are not written to disk for now: %s", error)
        self._retry_at = self._clock() + _RETRY_S


_Step = tuple["_Step | None", bytes, int, DiskPart]
"""The step before it, the name of its part, up to which token that is the same, and the part."""
