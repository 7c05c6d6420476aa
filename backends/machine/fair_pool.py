"""A thread pool in which one identity never uses more than half of the threads."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")
_Job = tuple[Future[Any], Callable[[], None]]
_LONGEST_REST_S: Final = 2.0


class FairPool:
    """Runs jobs in threads. One identity uses at most half of the threads, but always at least one.
    Waiting identities are served in turn, and the jobs of one identity start in the order of
    submission.

    Args:
        threads: the most threads; each is started when it is first needed.
        name: prefix of the names of the threads.
        nice: nice value of the threads, if the system has priorities of threads (Linux).
        rest: after a job that took t seconds, the next one of its identity waits `rest` * t
            seconds, at most `_LONGEST_REST_S`. One identity thus uses at most 1 / (1 + rest) of a
            processor for each of its threads.
    """

    def __init__(self, threads: int, name: str, nice: int = 0, rest: float = 0.0) -> None:
        self._most_threads = threads
        self._most_of_one = max(1, threads // 2)
        self._name = name
        self._nice = nice
        self._rest = rest
        self._rests_until: dict[str, float] = {}
        """Time until which an identity must wait, in seconds of the monotonic clock."""
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[_Job]] = {}
        """Waiting jobs by identity; the identity to be served next comes first."""
        self._running: Counter[str] = Counter()
        self._threads = 0
        self._idle = 0

    def submit(self, identity: str, do: Callable[[], T]) -> Future[T]:
        """Run `do` for `identity`; cancelling the future before it runs drops it."""
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
            self._waiting.setdefault(identity, deque()).append((future, job))
            pending = sum(map(len, self._waiting.values()))
            if pending > self._idle and self._threads < self._most_threads:
                name = f"{self._name} {self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1
            self._changed.notify()
        future.add_done_callback(partial(self._drop, identity))
        return future

    def _drop(self, identity: str, future: Future[Any]) -> None:
        """Remove a job that was cancelled before it ran, so that its objects are freed."""
        if not future.cancelled():
            return
        with self._changed:
            waiting = self._waiting.get(identity, ())
            kept = deque(job for job in waiting if job[0] is not future)
            if kept:
                self._waiting[identity] = kept
            elif waiting:
                del self._waiting[identity]

    def _work(self) -> None:
        if self._nice and sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        while True:
            identity, job = self._next()
            began_s = time.monotonic()
            job()
            del job  # Frees the objects of the job before the next one is taken.
            with self._changed:
                self._let_rest(identity, time.monotonic() - began_s)
                self._running[identity] -= 1
                if not self._running[identity]:
                    del self._running[identity]
                self._changed.notify()

    def _let_rest(self, identity: str, took_s: float) -> None:
        if not self._rest:
            return
        now_s = time.monotonic()
        self._rests_until = {
            other: until_s for other, until_s in self._rests_until.items() if until_s > now_s
        }
        self._rests_until[identity] = now_s + min(self._rest * took_s, _LONGEST_REST_S)

    def _next(self) -> tuple[str, Callable[[], None]]:
        """The next job that may run, and its identity; waits until there is one."""
        with self._changed:
            while True:
                now_s = time.monotonic()
                soonest_s: float | None = None
                for identity in self._waiting:
                    if self._running[identity] < self._most_of_one:
                        rests_s = self._rests_until.get(identity, now_s) - now_s
                        if rests_s <= 0:
                            return identity, self._take(identity)
                        soonest_s = rests_s if soonest_s is None else min(soonest_s, rests_s)
                self._idle += 1
                self._changed.wait(soonest_s)
                self._idle -= 1

    def _take(self, identity: str) -> Callable[[], None]:
        jobs = self._waiting.pop(identity)
        _, job = jobs.popleft()
        if jobs:
            self._waiting[identity] = jobs  # Behind all other identities.
        self._running[identity] += 1
        return job
