"""Prefixes in a store of either kind, as the KV manager asks for them."""

from __future__ import annotations

from hearth.backends.engine.kv.blocks import BlockLeaves
from hearth.backends.engine.kv.sequences import SequenceLeaves

Leaves = SequenceLeaves | BlockLeaves
Handle = int | list[list[int]]
"""What a runner computes a sequence with: the id of a sequence, or for each group of layers its
blocks (`NO_BLOCK` where a window has passed).
"""
