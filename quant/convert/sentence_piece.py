"""Converts byte-pair encodings that were made from a SentencePiece model back to its terms: of all
neighbours that can be merged, those whose piece has the best score are merged first.
"""

from __future__ import annotations

from hearth.quant.convert.tokenizer_file import TokenizerFile
from hearth.quant.errors import UnsupportedModel
from hearth.quant.gguf.faults import quoted
from hearth.quant.json_fields import Fields

SPACE_MARK = "\u2581"
BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
"""Tokens that spell the bytes of characters that have no token."""


def prefixes_space(file: TokenizerFile, *, is_chat: bool) -> bool:
    """Whether a space is put before a text, as before every word.

    GGUF has a single switch: a space at the start of a text and after each special token, or never.
    Tokenizers with the scheme "first" add a space only at the start of a whole text. A chat begins
    with a special token, so it gets none; for chat models the switch is therefore off. GGUF cannot
    express that some tokenizers add no space if the text already begins with one.

    Args:
        is_chat: the model has a chat template.

    Raises:
        UnsupportedModel: the text is changed in a way that GGUF cannot express.
    """
    escapes = prefixes = False
    for step in file.normalizers:
        kind = step.text("type")
        if kind == "Prepend" and step.text("prepend") == SPACE_MARK:
            prefixes = True
        elif kind == "Replace" and _is_for_spaces(step) and step.text("content") == SPACE_MARK:
            escapes = True
        else:
            raise step.unsupported("type", "Prepend of ▁ and Replace of a space by ▁")
    for step in file.pre_tokenizers:
        kind = step.text("type")
        if kind == "Metaspace" and step.text("replacement") == SPACE_MARK:
            escapes = True
            usual = "always" if step.flag("add_prefix_space", True) else "never"
            scheme = step.text("prepend_scheme", usual)
            if scheme not in ("always", "first", "never"):
                raise step.wrong("prepend_scheme", "must be always, first or never")
            if step.flag("split", True):
                raise step.unsupported("split", "false: pieces may hold several words")
            prefixes = prefixes or scheme == "always" or (scheme == "first" and not is_chat)
        elif not (kind == "Split" and escapes and _is_for_spaces(step)):
            raise step.unsupported("type", "Metaspace")
    if not escapes:
        raise UnsupportedModel(
            f"{file.path}: spaces are not written as ▁, as GGUF's vocabularies with <0x..> have "
            "it.",
            "Take a GGUF of this model.",
            path=str(file.path),
            field="normalizer",
        )
    return prefixes


def _is_for_spaces(step: Fields) -> bool:
    """Whether a step replaces spaces, or splits at them, as Gemma's does after all spaces have been
    replaced.
    """
    pattern = step.section("pattern")
    return pattern is not None and pattern.text("String", "") == " "


def scores_of(file: TokenizerFile, added: frozenset[str]) -> dict[str, float]:
    """The score of each token that merging makes: the higher, the earlier it is merged.

    Args:
        added: texts of the tokens that are recognized before text is split.

    Raises:
        UnsupportedModel: there is no merge for two tokens that together make a token; by scores,
            they would be merged.
    """
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(file.merges):
        ranks.setdefault(left + right, rank)
    known = set(file.merges)
    for piece in file.ids:
        if piece in added or piece in BYTES:
            continue
        for cut in range(1, len(piece)):
            pair = piece[:cut], piece[cut:]
            if pair in known or added.intersection(pair):
                continue
            if pair[0] in file.ids and pair[1] in file.ids:
                raise UnsupportedModel(
                    f"{file.path}: {quoted(piece)} is not merged of {quoted(pair[0])} and "
                    f"{quoted(pair[1])}, which are tokens; in GGUF's terms it would be.",
                    "Take a GGUF of this model.",
                    path=str(file.path),
                    field="model.merges",
                )
    return {piece: -float(rank) for piece, rank in ranks.items()}
