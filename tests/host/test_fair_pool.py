"""A pool of threads that one identity cannot fill."""

import threading
import weakref

import pytest

from hearth.backends.machine.fair_pool import FairPool


def test_results_and_errors_come_back():
    pool = FairPool(2, "test")
    assert pool.submit("a", lambda: 3).result(10) == 3
    with pytest.raises(ZeroDivisionError):
        pool.submit("a", lambda: 1 / 0).result(10)


@pytest.mark.parametrize("threads", [2, 4])
def test_one_identity_has_half_of_the_threads(threads):
    pool, free, begun = FairPool(threads, "test"), threading.Event(), threading.Semaphore(0)

    def work():
        begun.release()
        assert free.wait(10)

    greedy = [pool.submit("greedy", work) for _ in range(3 * threads)]
    for _ in range(threads // 2):
        assert begun.acquire(timeout=10)
    assert sum(job.running() for job in greedy) == threads // 2
    assert pool.submit("modest", lambda: "done").result(10) == "done"
    free.set()
    for job in greedy:
        job.result(10)


def test_one_thread_serves_everybody_in_turn():
    pool, free, order = FairPool(1, "test"), threading.Event(), []
    begun = threading.Event()
    pool.submit("a", lambda: begun.set() or free.wait(10))
    assert begun.wait(10)
    jobs = [
        pool.submit(name[0], lambda name=name: order.append(name))
        for name in ("a1", "a2", "b1", "c1")
    ]
    free.set()
    for job in jobs:
        job.result(10)
    assert order == ["a1", "b1", "c1", "a2"]


def test_a_job_that_is_cancelled_before_its_turn_does_not_run():
    pool, free, ran = FairPool(1, "test"), threading.Event(), []
    pool.submit("a", lambda: free.wait(10))
    job, body = pool.submit("a", ran.append), threading.Semaphore()
    held = weakref.ref(body)
    other = pool.submit("a", body.acquire)
    del body
    assert job.cancel() and other.cancel()
    assert held() is None, "the body of a cancelled job is kept until its turn"
    free.set()
    pool.submit("a", lambda: None).result(10)
    assert not ran


def test_an_identity_rests_after_a_long_job_and_others_do_not():
    pool, order, begun = FairPool(1, "test", rest=50), [], threading.Event()

    def long():
        begun.set()
        threading.Event().wait(0.02)

    first = pool.submit("busy", long)
    assert begun.wait(10)
    jobs = [pool.submit(name, lambda name=name: order.append(name)) for name in ("busy", "other")]
    for job in (first, *jobs):
        job.result(10)
    assert order == ["other", "busy"]
