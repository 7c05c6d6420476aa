"""Grammars that answers follow: tested, compiled, and matched token by token."""

from __future__ import annotations

import threading
from collections import OrderedDict
from copy import copy
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine import grammar_library
from hearth.backends.engine.loop_closing import JsonClosers, LoopClosing
from hearth.backends.engine.matcher import Matcher
from hearth.backends.errors import InternalError, InvalidParameter, LimitExceeded
from hearth.backends.machine.helper import Helper, HelperLost
from hearth.backends.machine.helper_child import MOST_MEMORY_BYTES
from hearth.backends.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_COMPILE_S: Final = 2.0
_MOST_PROVEN: Final = 256
_MOST_PROVEN_CHARACTERS: Final = 4 * 1024 * 1024
_SIMPLER: Final = "Simplify it, or check part of it after the answer has come."


class Grammars:
    """Makes the matchers of one model's sequences. Thread-safe.

    A grammar is first tested in a helper process limited to 2 s and 512 MiB; only grammars that
    pass are compiled here. The ones that passed are remembered, and the least recently used are
    forgotten first. Each sequence compiles its own matcher, which takes milliseconds: copies of one
    matcher share their lexer and its bound (llguidance 1.9.1;
    `test_copies_of_a_matcher_still_share_their_bound`), so one sequence could end all others.

    Args:
        tokenizer: of the model.
        vocab_size: V, the width of the logits; ids beyond the tokenizer's are never allowed.
        end_ids: every end-of-generation token.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        # llguidance requires an end token: if the model declares none, use an id that is not a
        # token.
        self._end_ids = end_ids or frozenset((vocab_size,))
        self._helper = Helper("hearth.backends.engine.grammar_helper", "The compiler of grammars")
        self._lock = threading.Lock()
        self._trie: LLTokenizer | None = None
        self._closers: JsonClosers | None = None
        self._special_ids: frozenset[int] = frozenset()
        self._proven: OrderedDict[str, str] = OrderedDict()
        """Sources that compiled, and their conversion to Lark (`gbnf`)."""
        self._proven_characters = 0

    def matcher(self, lark: str, param: str) -> Matcher:
        """A matcher at the beginning of `lark` (llguidance's dialect; special tokens by id, as
        `<[151645]>`, or by name, as `<|im_end|>`; llama.cpp grammars embedded as described at
        `rules.GBNF`). Blocks while the grammar is compiled.

        Args:
            param: the request parameter that asked for it, for errors.

        Raises:
            InvalidParameter: it is malformed or unsupported, or no text can match it.
            LimitExceeded: it is too complex, or the helper process died twice while compiling it.
            BackendUnavailable: llguidance is not installed.
            InternalError: the helper process cannot be started, or is closed.
        """
        grammar_library.require_library()
        trie = self._ready_trie()
        converted = self._known(lark) or self._try_out(lark, param)
        try:
            matcher = grammar_library.compile_grammar(trie, converted)
        except grammar_library.GrammarRefused as refused:
            raise _refusal(param, str(refused), too_complex=refused.too_complex) from refused
        self._remember(lark, converted)
        made: Matcher = GrammarMatcher(matcher, self._vocab_size, self._special_ids, param)
        if "%json" in lark:
            made = LoopClosing(made, self._tokenizer.piece, self._ready_closers())
        return made

    def close(self) -> None:
        """End the helper process; no new grammar can be compiled afterwards."""
        self._helper.close()

    def _try_out(self, lark: str, param: str) -> str:
        """Compile `lark` in the helper process, where it can do no harm; returns it converted to
        pure Lark.
        """
        try:
            try:
                answer = self._helper.ask({"lark": lark}, _COMPILE_S)
            except HelperLost as lost:
                if lost.overdue:
                    raise
                # The system may have killed the helper because memory was short. A grammar that
                # itself takes too much memory fails again.
                answer = self._helper.ask({"lark": lark}, _COMPILE_S)
        except HelperLost as lost:
            raise _not_compiled(param, lost) from lost
        if "refused" in answer:
            raise _refusal(param, answer["refused"], too_complex=answer["too_complex"])
        converted: str = answer["lark"]
        return converted

    def _ready_trie(self) -> LLTokenizer:
        with self._lock:
            if self._trie is None:
                vocabulary = self._vocabulary()
                self._special_ids = frozenset(vocabulary.special_token_ids)
                self._trie = grammar_library.make_tokenizer(vocabulary, self._end_ids)
            return self._trie

    def _ready_closers(self) -> JsonClosers:
        with self._lock:
            if self._closers is None:
                known = min(self._vocab_size, self._tokenizer.vocab_size)
                pieces = (self._tokenizer.piece(ident) for ident in range(known))
                self._closers = JsonClosers(pieces, self._vocab_size)
            return self._closers

    def _vocabulary(self) -> grammar_library.Vocabulary:
        """Every token with its text bytes. Control tokens have no text: they are marked special and
        keep their written name.
        """
        known = min(self._vocab_size, self._tokenizer.vocab_size)
        special = set(self._end_ids)
        tokens = [b""] * (max(self._vocab_size, *special) + 1)
        for ident in range(known):
            piece = b"" if ident in special else self._tokenizer.piece(ident)
            if not piece:
                piece = self._tokenizer.piece(ident, special=True)
                if piece:
                    special.add(ident)
            tokens[ident] = piece
        return grammar_library.Vocabulary(tokens, special, self._end_ids, self._encode)

    def _encode(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode(errors="replace"), special=False, add_bos=False)

    def _known(self, lark: str) -> str | None:
        with self._lock:
            return self._proven.get(lark)

    def _remember(self, lark: str, converted: str) -> None:
        with self._lock:
            if lark not in self._proven:
                self._proven_characters += len(converted)
            self._proven[lark] = converted
            self._proven.move_to_end(lark)
            while (
                len(self._proven) > _MOST_PROVEN
                or self._proven_characters > _MOST_PROVEN_CHARACTERS
            ):
                _, oldest = self._proven.popitem(last=False)
                self._proven_characters -= len(oldest)


class GrammarMatcher:
    """Implements `hearth.backends.engine.matcher.Matcher` with llguidance.

    Args:
        matcher: used by this sequence alone.
        vocab_size: V.
        special_ids: control and end tokens.
        param: the request parameter that asked for the grammar, for errors.
    """

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, special_ids: frozenset[int], param: str
    ) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._special_ids = special_ids
        self._param = param
        self.notices: tuple[str, ...] = ()
        self._tokens = 0
        self._mask: NDArray[np.bool_] | None = None

    def allows(self, token: int) -> bool:
        """See the protocol; takes microseconds, but special tokens cost as much as `allowed`."""
        if self._mask is not None or token in self._special_ids:
            return bool(self.allowed()[token])
        fits = self._matcher.validate_tokens([token]) == 1
        self._check()
        return fits

    def allowed(self) -> NDArray[np.bool_]:
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            self._check()
            mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
            if not mask.any():
                raise self._dead_end()
            self._mask = mask
        return self._mask

    def accept(self, token: int) -> None:
        self._mask = None
        self._tokens += 1
        self._matcher.consume_token(token)
        self._check()

    def copy(self) -> GrammarMatcher:
        """See the protocol. Lexer states that the copy visits count against both matchers."""
        made = copy(self)
        made._matcher = self._matcher.deep_copy()
        return made

    @property
    def complete(self) -> bool:
        return self._matcher.is_stopped()

    def _check(self) -> None:
        """Raises LimitExceeded if a bound is met, InvalidParameter if nothing can follow, and
        InternalError if a token was accepted that is not allowed.
        """
        if grammar_library.can_go_on(self._matcher):
            return
        if "doesn't satisfy the grammar" in self._matcher.get_error():
            raise InternalError(
                f"Token {self._tokens:,} of the answer does not follow its grammar."
            )
        if self._matcher.stop_reason() in ("NoExtension", "NoExtensionBias"):
            raise self._dead_end()
        raise LimitExceeded(
            self._param,
            f"{self._param} became too complex to follow after {self._tokens:,} tokens.",
            _SIMPLER,
        )

    def _dead_end(self) -> InvalidParameter:
        return InvalidParameter(
            self._param,
            f"{self._param} leaves nothing that could be written after {self._tokens:,} tokens.",
            "See that everything it demands can be met at once.",
        )


def _not_compiled(param: str, lost: HelperLost) -> LimitExceeded:
    if lost.overdue:
        what = f"{param} took more than {_COMPILE_S:g} s to compile."
        return LimitExceeded(param, what, _SIMPLER)
    return LimitExceeded(
        param,
        f"{param} was not compiled: the process that compiles it ended unexpectedly, twice. Either"
        f" {param} needs more than {MOST_MEMORY_BYTES >> 20} MiB to compile, or this machine is"
        " short of memory.",
        f"Try again when more memory is free, or simplify {param}.",
    )


def _refusal(param: str, reason: str, *, too_complex: bool) -> InvalidParameter:
    if too_complex:
        return LimitExceeded(param, f"{param} is too complex: {reason}.", _SIMPLER)
    hint = _SIMPLER
    if "nimplemented" in reason:
        hint = "Leave these keywords out, and check that part after the answer has come."
    return InvalidParameter(param, f"{param} cannot be followed: {reason}.", hint)
