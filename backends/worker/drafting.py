"""Loads the model that makes drafts for another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hearth.backends.contract.models import ModelSpec
from hearth.backends.engine.draft_model import DraftModel
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.errors import InvalidParameter
from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.worker.runners import open_model


def open_draft(spec: ModelSpec, loaded: Loaded, cache_dir: Path) -> DraftModel | None:
    """The draft model of `spec`, whose own model is `loaded`; None: it has none, or none is of use
    to a memory that cannot roll back.

    Raises:
        InvalidParameter: there is none though `speculate` is "draft", its vocabulary is another, or
            its memory cannot roll back.
        HearthError: as `open_model`.
    """
    settings = spec.settings
    if (own := spec.draft) is None:
        if settings.speculate == "draft":
            raise InvalidParameter(
                "speculate",
                "speculate is draft, and no draft model is named.",
                "Set draft (--draft).",
            )
        return None
    if not loaded.runner.info.can_roll_back:
        return None
    own = replace(own, settings=replace(own.settings, context=loaded.runner.info.context))
    draft = open_model(own, cache_dir)
    name = Path(settings.draft).name
    if not draft.runner.info.can_roll_back:
        draft.runner.close()
        raise InvalidParameter(
            "draft", f"{name} keeps a state that cannot forget tokens.", "Choose another model."
        )
    if not _has_same_tokens(loaded.tokenizer, draft.tokenizer):
        draft.runner.close()
        raise InvalidParameter(
            "draft",
            f"{name} has another vocabulary than {loaded.info.name}.",
            "Choose a smaller model of the same family.",
        )
    model = DraftModel(draft.runner, loaded.runner.info.vocab_size)
    model.warm_up()
    return model


def _has_same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether both have the same tokens under the same ids, but for unused ones at the end."""
    ids = range(min(one.vocab_size, other.vocab_size))
    return all(one.piece(at, special=True) == other.piece(at, special=True) for at in ids)
