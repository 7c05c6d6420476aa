"""The helper process that tests grammars: `python -P -m hearth.backends.engine.grammar_helper`.

Its limits are set in `backends.machine.helper_child`. It uses one token per byte instead of the
model's vocabulary, because whether a grammar compiles does not depend on the vocabulary.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

from hearth.backends.engine import grammar_library
from hearth.backends.engine.gbnf import with_lark
from hearth.backends.machine.helper_child import serve

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_END: Final = 256
_MOST_NAMED_TOKENS: Final = 255
_LARK: Final = re.compile(
    r"""
    (?: "(?:\\.|[^"\\\n])*"         # a text, also one inside of %json
      | //[^\n]*                    # a comment
      | /(?:\\.|[^/\\\n])+/         # a pattern
    )
    | (?P<token> <[^<>\s"]+> )
    """,
    re.VERBOSE,
)
_WARM_UP: Final = 'start: %json {"type": "object"} /[a-z]+/'


def main() -> None:
    """Test grammars from standard input until it closes."""
    tokenizer = functools.lru_cache(maxsize=1)(_byte_tokenizer)
    serve(lambda question: _answer(tokenizer(), question), lambda: _warm_up(tokenizer()))


def _answer(tokenizer: LLTokenizer, question: dict[str, Any]) -> dict[str, Any]:
    """The grammar of `question` converted to pure Lark if it compiles and some text can match it,
    else the reason why not.
    """
    try:
        lark = with_lark(question["lark"])
        matcher = grammar_library.compile_grammar(tokenizer, _with_own_tokens(lark))
    except grammar_library.GrammarRefused as refused:
        return {"refused": str(refused), "too_complex": refused.too_complex}
    matcher.compute_bitmask()
    if not grammar_library.can_go_on(matcher):
        return {"refused": "nothing can be written that follows it", "too_complex": False}
    return {"lark": lark}


def _byte_tokenizer() -> LLTokenizer:
    """One token per byte, then the end token, then special tokens that grammars may name."""
    tokens = [bytes([value]) for value in range(_END)]
    tokens += [b"<|%d|>" % number for number in range(_END, _END + 1 + _MOST_NAMED_TOKENS)]
    vocabulary = grammar_library.Vocabulary(tokens, range(_END, len(tokens)), [_END], list)
    return grammar_library.make_tokenizer(vocabulary, [_END])


def _with_own_tokens(lark: str) -> str:
    """`lark` with its special tokens renumbered to those of this process."""
    numbers: dict[str, int] = {}

    def renamed(match: re.Match[str]) -> str:
        name = match["token"]
        if name is None:
            return match[0]
        number = numbers.setdefault(name, 1 + len(numbers) % _MOST_NAMED_TOKENS)
        return f"<[{_END + number}]>"

    return _LARK.sub(renamed, lark)


def _warm_up(tokenizer: LLTokenizer) -> None:
    grammar_library.compile_grammar(tokenizer, _WARM_UP).compute_bitmask()


if __name__ == "__main__":
    main()
