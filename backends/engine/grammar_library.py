"""llguidance as the engine uses it: the bounds it runs under, and the meaning of its errors.

llguidance is imported inside the functions, so it is not loaded before the first grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from hearth.backends.errors import BackendUnavailable

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_MOST_LEXER_STATES: Final = 50_000
"""Limit for one sequence, at 1 to 2 kB per state. Schemas need hundreds; some patterns need as many
as there are matching texts."""
_HEADER: Final = '%llguidance {"no_forcing": true}\n'
"""Where the next text is certain, every tokenization of it stays allowed: the choice is the
model's own."""
_PLACE: Final = re.compile(r"^(?:at )?\d+\(\d+\): ")
_LONGEST_REASON: Final = 240
_COMPLEX: Final = ("fuel", "too large", "too many", "too complex", "too deeply", "limit exceeded")


class GrammarRefused(Exception):
    """llguidance refuses a grammar; the message gives the reason in one line. `too_complex`: the
    grammar exceeds a bound, rather than being wrong.
    """

    def __init__(self, message: str, *, too_complex: bool) -> None:
        super().__init__(message)
        self.too_complex = too_complex


class Vocabulary:
    """The interface that llguidance requires of a tokenizer (`llguidance.TokenizerWrapper`).

    Args:
        tokens: the bytes of each token; b"" for tokens that are never written.
        special_ids: tokens that are allowed only where a grammar names them, whatever their bytes.
        end_ids: the end-of-generation tokens, at least one.
        encode: encodes UTF-8 text to token ids.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: Collection[int],
        end_ids: Collection[int],
        encode: Callable[[bytes], list[int]],
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special_ids)
        self.eos_token_id = min(end_ids)
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text)


def require_library() -> None:
    """Load llguidance.

    Raises:
        BackendUnavailable: it is not installed or fails to load.
    """
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        raise BackendUnavailable(
            f"Structured output needs llguidance, which does not load: {error}.",
            "Install it with `pip install llguidance`, or ask without a schema, pattern or strict"
            " tool.",
        ) from error


def make_tokenizer(vocabulary: Vocabulary, end_ids: Collection[int]) -> LLTokenizer:
    """The trie of all tokens; takes about 0.5 s and 50 MB for 150,000 tokens."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=sorted(end_ids))


def compile_grammar(tokenizer: LLTokenizer, lark: str) -> LLMatcher:
    """A matcher at the beginning of `lark`, under the bounds of this module.

    Raises:
        GrammarRefused: it is malformed, uses what llguidance does not support, or is too complex.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_lexer_states=_MOST_LEXER_STATES,
        precompute_large_lexemes=False,  # would delay the first token
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, _HEADER + lark, log_level=0, limits=limits)
    if matcher.is_error():
        complaint = matcher.get_error()
        too_complex = any(word in complaint for word in _COMPLEX)
        raise GrammarRefused(_reason(complaint), too_complex=too_complex)
    return matcher


def can_go_on(matcher: LLMatcher) -> bool:
    """Whether at least one more token, or the end, can follow."""
    return not matcher.is_error() and (not matcher.is_stopped() or matcher.is_accepting())


def _reason(complaint: str) -> str:
    """The line of llguidance's message that names the error, without positions in the generated
    Lark.
    """
    first, *more = complaint.splitlines() or [""]
    reason = _PLACE.sub("", first).removeprefix("failed to compile JSON schema: ")
    for line in more:
        if line.startswith("error: "):
            reason = f"a pattern is not understood: {line.removeprefix('error: ')}"
    return reason[:_LONGEST_REASON].rstrip(" .:")
