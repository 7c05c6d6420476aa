"""Prefixes in a store of either kind, as the KV manager uses them."""

from __future__ import annotations

from hearth.backends.engine.kv.blocks import BlockLeaves
from hearth.backends.engine.kv.sequences import SequenceLeaves

Leaves = SequenceLeaves | BlockLeaves
Handle = int | list[list[int]]
"""Where a runner finds the keys and values of a sequence: its sequence id, or its block table for
each group of layers (`NO_BLOCK` for blocks that a sliding window has passed).
"""
