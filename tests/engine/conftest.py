"""What several tests of the engine use: both memory managers, and compiled grammars."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from byte_tokenizer import ByteTokenizer
from fake_pages import PagedMemory
from hearth.backends.engine.grammars import Grammars
from sequence_memory import Memory


@pytest.fixture(params=[Memory, PagedMemory])
def kind(request: pytest.FixtureRequest) -> type[Memory | PagedMemory]:
    """The memory manager of whole sequences, and the one of blocks."""
    return request.param


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    tokenizer = ByteTokenizer()
    made = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.end_ids)
    yield made
    made.close()
