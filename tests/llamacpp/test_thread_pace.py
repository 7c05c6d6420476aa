"""The number of decoding threads next to other programs, on a simulated machine."""

import statistics

import pytest

from hearth.backends.machine.thread_pace import ThreadPace


class Machine:
    """A step takes as long as its slowest thread, and a thread without its own core is slow."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.busy = 0
        self.used_s = 0.0

    def step_s(self, threads: int) -> float:
        free = self.cores - self.busy
        return 0.1 / threads if threads <= free else 0.3 / threads


def run(pace: ThreadPace, machine: Machine, seconds: float, rows: int = 1) -> list[int]:
    """The number of threads of each step, for that many seconds."""
    taken = []
    while seconds > 0:
        step_s = machine.step_s(pace.threads)
        taken.append(pace.threads)
        pace.observe(rows, step_s)
        seconds -= step_s
    return taken


@pytest.mark.parametrize(("cores", "busy", "least"), [(2, 1, 1), (8, 1, 5), (8, 4, 4)])
def test_fewer_threads_next_to_other_programs(cores, busy, least):
    pace, machine = ThreadPace(cores, cores), Machine(cores)
    run(pace, machine, 5)
    machine.busy = busy
    run(pace, machine, 20)
    last = run(pace, machine, 10)
    assert least <= statistics.mode(last)
    assert sum(count <= cores - busy for count in last) > 0.97 * len(last)


def test_all_threads_again_when_they_have_gone():
    pace, machine = ThreadPace(8, 8), Machine(8)
    machine.busy = 4
    assert run(pace, machine, 30)[-1] <= 4
    machine.busy = 0
    assert run(pace, machine, 60)[-1] == 8


def test_a_change_is_noticed_at_once():
    pace, machine = ThreadPace(2, 2), Machine(2)
    run(pace, machine, 100)
    machine.busy = 1
    assert 1 in run(pace, machine, 1.5)


def test_a_machine_that_was_busy_from_the_start():
    pace, machine = ThreadPace(2, 2, step_s=0.05), Machine(2)
    machine.busy = 1
    assert 1 in run(pace, machine, 1.5)


def test_an_idle_machine_pays_little():
    pace, machine = ThreadPace(2, 2), Machine(2)
    steps = run(pace, machine, 120)
    assert set(steps) == {1, 2}
    assert steps.count(1) < 0.01 * len(steps)


def test_steps_of_another_size_are_not_compared():
    pace, machine = ThreadPace(2, 2), Machine(2)
    for _ in range(200):
        run(pace, machine, 0.01, rows=1)
        pace.observe(8, 1.0)
    assert pace.threads == 2
