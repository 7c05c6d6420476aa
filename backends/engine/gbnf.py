"""Grammars of llama.cpp (GBNF), converted for llguidance.

They come from requests, so they are only parsed in the grammar helper (`grammar_helper`).
llguidance converts them to its own dialect of Lark; syntax that its converter does not read is
rewritten first.
"""

from __future__ import annotations

import json
import re
from typing import Final

from hearth.backends.engine.grammar_library import GrammarRefused
from hearth.backends.text.output.rules import GBNF

_PLACE: Final = re.compile(
    r"""
    (?: "(?:\\.|[^"\\\n])*"             # a string, also one inside of %json
      | //[^\n]*                        # a comment
      | /(?:\\.|[^/\\\n])+/             # a pattern
    )
    | """
    + GBNF
    + r""" [ ] (?P<source>"(?:\\.|[^"\\\n])*")
    """,
    re.VERBOSE,
)
_TOKEN: Final = re.compile(
    r"""
    (?P<string> "(?:\\.|[^"\\])*" )
    | (?P<set> \[(?:\\.|[^\]\\])*\] )
    | (?P<comment> \#[^\n]* )
    | (?P<any> \. )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\\\"\[\]]))"
    r"|([^\\])",
    re.DOTALL,
)
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t"}
_MEANING: Final = '"\\/[]&~'
"""Characters with a special meaning in strings or in sets."""
_ANY: Final = "[^\U0010ffff]"
_LARK: Final = re.compile(r"\s*%llguidance[ \t]*(?:\{[^{}\n]*\})?[ \t]*(?:\n|\Z)")
"""The beginning of a grammar written in llguidance's own dialect of Lark, which is accepted instead
of GBNF."""
_RULE: Final = re.compile(r"'([^']+)'")


def with_lark(grammar: str) -> str:
    """`grammar`, in Lark, with each GBNF grammar embedded in it (`rules.GBNF`) converted to Lark.

    Raises:
        GrammarRefused: a GBNF grammar cannot be read; the message names the line.
    """
    if GBNF not in grammar:
        return grammar
    return _PLACE.sub(
        lambda match: (
            f"%lark {{\n{_lark(json.loads(match['source']))}}}" if match["source"] else match[0]
        ),
        grammar,
    )


def _lark(source: str) -> str:
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    if (own := _LARK.match(source)) is not None:
        return source[own.end() :] + "\n"
    plain = _plain(source)
    try:
        return gbnf_to_lark(plain)
    except RecursionError as error:
        raise GrammarRefused("it is nested too deeply", too_complex=True) from error
    except GbnfToLarkError as error:
        line = plain.count("\n", 0, error.pos.pos) + 1
        what = str(error).partition(" at line ")[0]
        raise GrammarRefused(f"line {line}: {what}", too_complex=False) from error
    except Exception as error:  # The converter has no error type of its own for later stages.
        raise GrammarRefused(_with_line(str(error), plain), too_complex=False) from error


def _with_line(complaint: str, source: str) -> str:
    """`complaint`, with the number of the first line that contains the rule it names."""
    rule = _RULE.search(complaint)
    if rule is not None:
        use = re.search(rf"(?<![\w-]){re.escape(rule[1])}(?![\w-])", source)
        if use is not None:
            return f"line {source.count(chr(10), 0, use.start()) + 1}: {complaint}"
    return complaint


def _plain(source: str) -> str:
    """`source` without comments, and with escapes in the form that the converter accepts."""

    def written(match: re.Match[str]) -> str:
        if match["any"]:
            return _ANY
        if match["comment"]:
            return ""
        text = match[0]
        body = _ESCAPE.sub(lambda one: _escaped(one, is_set=bool(match["set"])), text[1:-1])
        return text[0] + body + text[-1]

    return _TOKEN.sub(written, source)


def _escaped(match: re.Match[str], *, is_set: bool) -> str:
    """One character of a string or a set."""
    code = match[1] or match[2] or match[3]
    if code is None and match[5] and is_set and match[5] in "^-":
        return match[5]
    try:
        char = chr(int(code, 16)) if code else _LETTERS.get(match[4], match[4]) or match[5]
    except (ValueError, OverflowError):
        return match[0]
    if char < " " or char == "\x7f" or char in _MEANING or (is_set and code and char in "^-"):
        return f"\\x{ord(char):02X}"
    return char
