"""Engines whose steps compute more than is accepted of them, as with speculation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from unittest.mock import patch

from fake_runner import FakeRunner
from hearth.backends.engine import cached_runner
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.errors import Busy


def drafting_engine(
    runner: FakeRunner, drafts: int, clock: Callable[[], float], disk: DiskTier | None = None
) -> Engine:
    """An engine over `runner` that computes `drafts` tokens more in each row, and takes them back,
    where there is room for them.
    """

    class DraftingKv(KvManager):
        refused = 0

        def prepare(self, counts: Mapping[int, int]) -> None:
            runner.drafts = {}
            more = dict(counts)
            for slot, count in counts.items():
                end = self.length(slot) + count + drafts
                if drafts and self.reserve(slot, end):
                    runner.drafts[slot] = drafts
                    more[slot] = count + drafts
            try:
                super().prepare(more)
            except Busy:
                DraftingKv.refused += 1
                raise

        def commit(self, slot: int, tokens: Seq[int], computed: int | None = None) -> bool:
            more = runner.drafts.pop(slot, 0)
            is_kept = super().commit(slot, tokens, computed=len(tokens) + more)
            assert is_kept and self.reserve(slot, self.length(slot))
            return True

    with patch.object(cached_runner, "KvManager", DraftingKv):
        return Engine(runner, kv_clock=clock, disk=disk)


def assert_namespaces_share_nothing(kv: KvManager) -> None:
    """What is held of one namespace is never held of another."""
    owners: dict[object, bytes] = {}
    for prefix in [*kv._live(), *kv._kept]:
        for node in prefix.node.upwards():
            assert owners.setdefault(node, prefix.namespace) == prefix.namespace
