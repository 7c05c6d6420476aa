"""Text to token ids and back, with llama.cpp's own tokenizer."""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

from hearth.backends.contract.checks import check_text
from hearth.backends.errors import Busy, InternalError, InvalidParameter, LimitExceeded
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.text.vocab.base import Pieces
from hearth.backends.text.vocab.gguf_vocabulary import NAMED_TOKENS

_TOO_LARGE = -(2**31)
"""Result of llama_tokenize if the number of tokens does not fit an int32."""
_SPACES = frozenset(" \t\n\v\f\r")
_RUN = re.compile(r"[ \t-\r]+|[^ \t-\r]+")
"""A run of only white space characters, or of only other characters."""
_SHORT_RUN = 512
"""Longest run in characters that any thread's stack has room for."""
_STACK_BYTES_PER_CHAR = 512
"""Stack per character of a run: many vocabularies split text into words by `std::regex`, which
recurses for each character of a word, with 324 bytes in GCC's implementation."""
_LONGEST_RUN = 512 * 1024
_PLACES = re.compile(r"(\{query\}|\{document\})")
"""Placeholders of the question and the text in a template for ranking."""
_PAGE_BYTES = 4096
_ONE_AT_A_TIME = threading.Lock()
"""The size of a new thread's stack is a setting of the whole process."""


class LlamaTokenizer(Pieces):
    """Implements `hearth.backends.text.tokenizer.Tokenizer`.

    Thread-safe: llama.cpp only reads the vocabulary, and each cached piece is always written with
    the same value. It must not be used after its model is closed.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._api = api = model.library.api
        self.vocab_size = model.facts.vocab_size
        self._plain: list[bytes | None] = [None] * self.vocab_size
        self._special: list[bytes | None] = [None] * self.vocab_size
        self._has_words = model.metadata("tokenizer.ggml.model") == "gpt2"
        self.bos_text = self._written(api.llama_vocab_bos(model.vocab))
        self.eos_text = self._written(api.llama_vocab_eos(model.vocab))
        named = {name: model.metadata(key) for name, key in NAMED_TOKENS.items()}
        self.named_tokens = {
            name: self._written(int(said))
            for name, said in named.items()
            if said is not None and said.isdecimal() and int(said) < self.vocab_size
        }
        prefix = int(api.llama_vocab_fim_pre(model.vocab))
        suffix = int(api.llama_vocab_fim_suf(model.vocab))
        middle = int(api.llama_vocab_fim_mid(model.vocab))
        has_all = min(prefix, suffix, middle) >= 0
        self.infill_ids = (prefix, suffix, middle) if has_all else None

    @functools.cached_property
    def control_tokens(self) -> Mapping[str, int]:
        vocab, is_control = self._model.vocab, self._api.llama_vocab_is_control
        ids: dict[str, int] = {}
        for ident in range(self.vocab_size):
            if is_control(vocab, ident):
                ids.setdefault(self._written(ident), ident)
        return MappingProxyType(ids)

    def encode(
        self, text: str, *, special: bool, add_bos: bool, add_eos: bool = False
    ) -> list[int]:
        """Token ids of `text` (see the protocol).

        Raises:
            InvalidParameter: `text` has a lone surrogate, which is not a character, or is too long
                for the library.
            LimitExceeded: `text` has a run of more than 512 Ki characters without white space, or
                of white space, which the library cannot split into words.
            Busy: there is no memory to split a long run into words.
        """
        data = check_text("text", text)
        if len(data) >= 2**31:
            raise InvalidParameter(
                "text", f"The text has {len(data):,} bytes; 2^31 - 1 is the most."
            )
        facts = self._model.facts
        begin = [facts.bos_id] if add_bos and facts.adds_bos and facts.bos_id is not None else []
        end = [facts.closing_id] if add_eos and facts.closing_id is not None else []
        run = self._longest_run(text)
        if run <= _SHORT_RUN:
            return begin + self._tokenize(data, special) + end
        stack_bytes = (run + _LONGEST_RUN // 16) * _STACK_BYTES_PER_CHAR
        return begin + _on_stack(stack_bytes, lambda: self._tokenize(data, special)) + end

    def encode_pair(self, query: str, text: str) -> list[int]:
        """Token ids of a question and a text (see the protocol).

        They follow the model's own template for ranking. Without one, both are followed by the end
        token, with a separator in between, as in llama.cpp's server.
        """
        api, vocab = self._api, self._model.vocab
        template = self._model.metadata("tokenizer.chat_template.rerank")
        if template is not None:
            ids: list[int] = []
            places = {"{query}": query, "{document}": text}
            for part in _PLACES.split(template):
                typed = part in places
                ids += self.encode(places.get(part, part), special=not typed, add_bos=False)
            return ids
        separator = int(api.llama_vocab_sep(vocab))
        closing = int(api.llama_vocab_eos(vocab))
        if closing < 0:
            closing = separator
        end = [closing] if api.llama_vocab_get_add_eos(vocab) and closing >= 0 else []
        between = [separator] if api.llama_vocab_get_add_sep(vocab) and separator >= 0 else []
        first = self.encode(query, special=False, add_bos=True)
        second = self.encode(text, special=False, add_bos=False)
        return [*first, *end, *between, *second, *end]

    def _piece(self, token_id: int, special: bool) -> bytes:
        cache = self._special if special else self._plain
        known = cache[token_id]
        if known is None:
            known = cache[token_id] = self._read_piece(token_id, special)
        return known

    def _written(self, token_id: int) -> str:
        """The text of a special token as in templates; "" for a negative id."""
        return "" if token_id < 0 else self.decode([token_id])

    def _longest_run(self, text: str) -> int:
        """Characters of the longest run in `text`, if it may exceed the stack; else 0.

        It cannot if the text is short or the vocabulary does not split text into words.
        """
        if len(text) <= _SHORT_RUN or not self._has_words:
            return 0
        longest = _longest_run(text)
        if longest > _LONGEST_RUN:
            raise LimitExceeded(
                "text",
                f"The text has {longest:,} characters in a row without a change between white space"
                f" and others; at most {_LONGEST_RUN:,} can be cut into words.",
                "Break it into lines.",
            )
        return longest

    def _tokenize(self, data: bytes, special: bool) -> list[int]:
        capacity = len(data) + 16
        while True:
            buffer = (ctypes.c_int32 * capacity)()
            vocab = self._model.vocab
            if vocab is None:
                raise InternalError("The model is closed.")
            count = self._api.llama_tokenize(
                vocab, data, len(data), buffer, capacity, False, special
            )
            if count >= 0:
                return buffer[:count]
            if count == _TOO_LARGE:
                raise InvalidParameter(
                    "text", "The text has more tokens than the library can count."
                )
            capacity = -count

    def _read_piece(self, token_id: int, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            vocab = self._model.vocab
            if vocab is None:
                raise InternalError("The model is closed.")
            length = self._api.llama_token_to_piece(vocab, token_id, buffer, size, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length


def _on_stack(stack_bytes: int, work: Callable[[], list[int]]) -> list[int]:
    """Run `work` on a thread with at least `stack_bytes` of stack, and return its result.

    Only the used part of the stack takes memory.

    Raises:
        Busy: the system has no memory for such a thread.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as thread:
        with _ONE_AT_A_TIME:
            before = threading.stack_size(-(-stack_bytes // _PAGE_BYTES) * _PAGE_BYTES)
            try:
                result = thread.submit(work)
            except RuntimeError as error:
                raise Busy(
                    f"There is no memory for a thread with a stack of {stack_bytes:,} bytes.",
                    "Try again later, or close other programs.",
                    retry_after_s=1.0,
                ) from error
            finally:
                threading.stack_size(before)
        return result.result()


def _longest_run(text: str) -> int:
    """Characters of the longest run in `text` (see `_RUN`), if more than `_SHORT_RUN`.

    Otherwise, some number up to `_SHORT_RUN`. A longer run has a character at a multiple of
    `_SHORT_RUN`, so only these positions are checked.
    """
    longest = end = 0
    for place in range(0, len(text), _SHORT_RUN):
        if place < end:
            continue  # Within the run that was measured last.
        run = _RUN.match(text, place)
        assert run is not None
        start, end = place, run.end()
        is_space = text[place] in _SPACES
        while start and (text[start - 1] in _SPACES) == is_space:
            start -= 1
        longest = max(longest, end - start)
    return longest
