"""A pool of threads of which one identity never has more than half."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_Job = Callable[[], None]


class FairPool:
    """Runs jobs in threads. One identity has at most half of the threads (one, if there is only
    one); identities that wait take turns, and the jobs of one run in the order of submission.

    Args:
        threads: at most so many; they are started when they are first needed.
        name: of the threads.
        nice: how much lower their priority is than that of the others, where the system has
            priorities of threads (Linux).
    """

    def __init__(self, threads: int, name: str, nice: int = 0) -> None:
        self._most_threads = threads
        self._most_of_one = max(1, threads // 2)
        self._name = name
        self._nice = nice
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[_Job]] = {}
        """By identity; the next identity to have a turn comes first."""
        self._running: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, identity: str, do: Callable[[], T]) -> Future[T]:
        """Run `do` for `identity`; a future that is cancelled before that does not run it."""
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = do()
            except BaseException as error:  # noqa: BLE001 - raised again by `result`
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._changed:
            self._waiting.setdefault(identity, deque()).append(job)
            pending = sum(map(len, self._waiting.values()))
            if pending > self._idle and len(self._threads) < self._most_threads:
                number = len(self._threads)
                thread = threading.Thread(
                    target=self._work, name=f"{self._name} {number}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return future

    def shutdown(self) -> None:
        """Return when everything that was submitted is done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        if self._nice and sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        while (found := self._next()) is not None:
            identity, job = found
            job()
            del found, job  # What it held is free before the next one comes.
            with self._changed:
                self._running[identity] -= 1
                if not self._running[identity]:
                    del self._running[identity]
                self._changed.notify()

    def _next(self) -> tuple[str, _Job] | None:
        """The next job that may run; None at the end."""
        with self._changed:
            while True:
                for identity in self._waiting:
                    if self._running[identity] < self._most_of_one:
                        return identity, self._take(identity)
                if self._closed and not self._waiting:
                    self._changed.notify_all()
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1

    def _take(self, identity: str) -> _Job:
        jobs = self._waiting.pop(identity)
        job = jobs.popleft()
        if jobs:
            self._waiting[identity] = jobs  # Behind all others.
        self._running[identity] += 1
        return job
