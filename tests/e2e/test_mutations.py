"""Damaged copies of the bundled model: each gives a typed error or loads; the host never dies."""

import asyncio
import random

import psutil
import pytest

from gguf_builder import mutate
from hearth.backends.contract.events import Failed
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import HearthError, WorkerDied, from_info
from hearth.quant.gguf import preflight
from hearth.quant.gguf.reader import read_header
from hosts import attached, collect

SETTINGS = ModelSettings(context=64, threads=1, batch_threads=1, keep_alive_s=0.0)


def damaged_copies(source, folder, count, seed):
    """(path, what the pre-flight says) of `count` random mutations; only survivors are kept."""
    data = source.read_bytes()
    header = read_header(source).data_offset
    rng = random.Random(seed)
    survivors, refused = [], 0
    path = folder / "mutant.gguf"
    for n in range(count):
        path.write_bytes(mutate(data, rng, header_bytes=header))
        try:
            preflight.check(path)
        except HearthError:
            refused += 1
            continue
        survivors.append(path.rename(folder / f"survivor-{n}.gguf"))
    return survivors, refused


async def load_all(place, paths):
    """How many of `paths` load and speak; the rest must fail with a typed error."""
    loaded = refused_later = 0
    async with attached(place) as host:
        pid = (await host.stats()).pid
        for path in paths:
            backend = host.backend(ModelSpec(str(path), settings=SETTINGS))
            try:
                await backend.info()
                _, _, last = await collect(backend.generate(Request(text="hello", max_tokens=4)))
                if isinstance(last, Failed):
                    raise from_info(last.error)
                loaded += 1
            except WorkerDied:
                pytest.fail(f"{path.name} passed the pre-flight and killed its worker")
            except HearthError:
                refused_later += 1
            await host.unload()
            path.unlink()
        assert (await host.stats()).pid == pid and psutil.pid_exists(pid)
    assert loaded + refused_later == len(paths)
    return loaded


def test_five_hundred_mutations_of_the_guide(guide, tmp_path, place):
    """All 500 meet the pre-flight; a sample of those that pass it is loaded in a worker."""
    survivors, refused = damaged_copies(guide, tmp_path, 500, seed=11)
    assert refused > 50, "the mutations did not reach the header"
    for path in survivors[6:]:
        path.unlink()
    assert asyncio.run(load_all(place, survivors[:6])) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_survivor_loads_or_fails_by_name(guide, tmp_path, place):
    survivors, _ = damaged_copies(guide, tmp_path, 2000, seed=12)
    assert asyncio.run(load_all(place, survivors)) > 0
