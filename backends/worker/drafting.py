"""Loads the drafters of a model: a draft model, and Medusa heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hearth.backends.contract.models import ModelSpec, heads_path, is_heads
from hearth.backends.engine.draft_model import DraftModel
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.medusa import HeadsDrafter, TakesHeads
from hearth.backends.errors import InvalidParameter
from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.worker.runners import open_model


def open_draft(spec: ModelSpec, loaded: Loaded, cache_dir: Path) -> DraftModel | None:
    """The draft model of `spec`, whose own model is `loaded`; None if none is named, or if the
    memory of `loaded` cannot roll back.

    Raises:
        InvalidParameter: none is named although `speculate` is "draft", or the draft model has
            another vocabulary or a memory that cannot roll back.
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


def open_heads(spec: ModelSpec, loaded: Loaded) -> list[HeadsDrafter]:
    """Drafters with the Medusa heads of `spec`, whose model is `loaded`: the heads that `draft`
    names, or, if `speculate` is "medusa", those stored next to the model. Empty if there are none;
    with "auto" they must be named.

    One drafter makes chains and, if the runner supports trees, another makes trees; which is better
    is found by measuring.

    Raises:
        InvalidParameter: `speculate` is "medusa" or `draft` names heads, and the heads do not
            exist, belong to another model, or are not supported by the runner.
        CorruptFile: as `read_heads`.
    """
    settings, path = spec.settings, heads_path(Path(spec.path))
    is_named = bool(settings.draft) and is_heads(Path(settings.draft))
    if not is_named and settings.speculate != "medusa":
        return []
    if is_named:
        path = Path(settings.draft)
    elif not path.is_file():
        raise InvalidParameter(
            "speculate",
            f"speculate is medusa, and there is no file {path}.",
            "Make it with `hearth train-medusa`, or name another file as draft (--draft).",
        )
    runner = loaded.runner
    if not isinstance(runner, TakesHeads) or not runner.info.can_roll_back:
        raise InvalidParameter(
            "speculate",
            f"{loaded.info.name} runs with {loaded.info.backend}, which takes no Medusa heads.",
            "Set backend (--backend) to native, or speculate to ngram.",
        )
    heads, takes_trees = runner.load_heads(path)
    return [HeadsDrafter(heads, trees=trees) for trees in (False, True)[: 1 + takes_trees]]


def _has_same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether both have the same tokens with the same ids, over the ids that both have."""
    ids = range(min(one.vocab_size, other.vocab_size))
    return all(one.piece(at, special=True) == other.piece(at, special=True) for at in ids)
