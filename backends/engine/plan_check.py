"""Whether a plan may be computed: what is refused before a library sees it, which might answer with
an assertion or a broken sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from hearth.backends.engine.runner import Row, RunnerInfo
from hearth.backends.errors import InternalError


def check_rows(rows: Seq[Row], info: RunnerInfo, length: Callable[[int], int]) -> None:
    """Refuse rows that do not continue what the slots hold, or that are more than a step takes.

    Args:
        length: tokens that a slot holds.

    Raises:
        InternalError: with the numbers.
    """
    slots, tokens, outputs = set(), 0, 0
    for row in rows:
        count = len(row.tokens)
        if not 0 <= row.slot < info.max_sequences:
            raise InternalError(f"Slot {row.slot} does not exist; there are {info.max_sequences}.")
        held = length(row.slot)
        if count == 0 or row.start != held or not 0 <= row.outputs <= count:
            raise InternalError(
                f"A row of {count} tokens with {row.outputs} outputs starts at {row.start}; "
                f"slot {row.slot} holds {held}."
            )
        if held + count > info.context:
            raise InternalError(
                f"Slot {row.slot} would hold {held + count} tokens; the context is {info.context}."
            )
        slots.add(row.slot)
        tokens += count
        outputs += row.outputs
    if len(slots) != len(rows):
        raise InternalError("A plan names a slot twice.")
    if tokens > info.max_batch_tokens or outputs > info.max_outputs:
        raise InternalError(
            f"A plan has {tokens} tokens and {outputs} outputs; {info.max_batch_tokens} and "
            f"{info.max_outputs} are the most."
        )
