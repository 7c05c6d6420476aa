"""`safe_text`: nothing that steers, hides or reorders gets through, writing systems stay whole."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.app.terminal import SafeStream, safe_text

PAYLOADS = {
    "clear screen": "\x1b[2J\x1b[H",
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "title by ST": "\x1b]2;owned\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "link": "\x1b]8;;http://evil.example\x1b\\text\x1b]8;;\x1b\\",
    "device query": "\x1b[c\x1b[6n\x1b[>q",
    "dcs": "\x1bP+q544e\x1b\\",
    "apc": "\x1b_Gf=100;AAAA\x1b\\",
    "pm and sos": "\x1b^x\x1b\\\x1bXx\x1b\\",
    "reset": "\x1bc",
    "c1 csi": "\x9b31m",
    "c1 osc": "\x9d0;owned\x9c",
    "c1 dcs": "\x90q\x9c",
    "backspaces": "safe\x08\x08\x08\x08evil",
    "carriage return": "safe\revil",
    "vertical": "a\x0bb\x0cc",
    "shift out": "\x0eabc\x0f",
    "null": "a\x00b",
    "delete": "a\x7fb",
    "next line": "a\x85b",
    "bidi override": "\u202egnp.exe\u202c",
    "bidi isolate": "\u2066x\u2069\u2067\u2068",
    "bidi marks": "a\u200e\u200f\u061cb",
    "zero width": "pass\u200bword\ufeff\u2060",
    "word joiners": "a\u2061\u2062\u2063\u2064b",
    "tags": "ok" + "".join(chr(0xE0000 + ord(c)) for c in "ignore"),
    "variation bytes": "x" + "".join(chr(0xE0100 + i) for i in range(40)),
    "variation on letter": "a\ufe0fb\ufe00",
    "separators": "a\u2028b\u2029c",
    "soft hyphen": "pay\u00adpal",
    "fillers": "\u3164\u115f\u1160\uffa0",
    "grapheme joiner": "a\u034fb",
    "mongolian": "a\u180eb\u180b",
    "interlinear": "\ufff9a\ufffab\ufffb",
    "musical": "\U0001d173\U0001d17a",
    "lone joiner": "a\u200db",
    "joiner at the ends": "\u200dx\u200d",
    "lone surrogate": "\ud800x",
    "deprecated format": "\u206a\u206f",
}
WRITING = {
    "newline and tab": "a\n\tb",
    "accents": "Ünïcödé — “quotes” … naïve",
    "combining": "e\u0301 a\u0308",
    "chinese": "漢字かな交じり文",
    "ideographic variant": "葛\U000e0100飾",
    "persian": "می\u200cخواهم",
    "hindi": "क\u094d\u200dष र\u094d\u200cय",
    "family": "👨\u200d👩\u200d👧\u200d👦",
    "heart on fire": "❤\ufe0f\u200d🔥",
    "skin tone": "👍🏽 👩🏾\u200d💻",
    "keycap": "1\ufe0f\u20e3 #\ufe0f\u20e3",
    "text style": "☺\ufe0e ©\ufe0f",
    "flag": "🇫🇷",
    "box drawing": "┌─┐│└┘",
    "private use": "\ue0b0",
}
SAFE_INVISIBLES = {"\u200c", "\u200d"}


def split_everywhere(text: str) -> list[str]:
    """The results of feeding `text` cut in two at each place, and in single characters."""
    cuts = [(text[:at], text[at:]) for at in range(len(text) + 1)]
    results = []
    for pieces in [*cuts, tuple(text)]:
        stream = SafeStream()
        results.append("".join(stream.feed(piece) for piece in pieces) + stream.flush())
    return results


def dangerous(character: str) -> bool:
    kept = character in "\n\t" or character in SAFE_INVISIBLES
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs") and not kept


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_becomes_visible(payload: str) -> None:
    shown = safe_text(payload)
    assert not any(dangerous(character) for character in shown)
    assert not any(
        0xFE00 <= ord(character) <= 0xFE0F or ord(character) > 0xE0000 for character in shown
    )
    assert not any(joiner in shown for joiner in SAFE_INVISIBLES)
    assert len(shown) == len(payload)
    assert "\ufffd" in shown or "\u241b" in shown


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_cutting_a_payload_smuggles_nothing(payload: str) -> None:
    assert set(split_everywhere(payload)) == {safe_text(payload)}


@pytest.mark.parametrize("text", WRITING.values(), ids=WRITING)
def test_writing_stays_as_it_is_however_it_is_cut(text: str) -> None:
    assert safe_text(text) == text
    assert set(split_everywhere(text)) == {text}


def test_escape_has_a_sign_of_its_own() -> None:
    assert safe_text("\x1b[0m\x07") == "\u241b[0m\ufffd"


def test_every_control_and_format_character_is_replaced_by_itself() -> None:
    through = [
        hex(code)
        for code in range(sys.maxunicode + 1)
        if dangerous(chr(code)) and safe_text(f"a{chr(code)}b") == f"a{chr(code)}b"
    ]
    # Visible writing: signs around Arabic and Indic numbers, joiners of hieroglyphs.
    visible = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    visible |= set(range(0x13430, 0x13440))
    assert [code for code in through if int(code, 16) not in visible] == []


PARTS = st.sampled_from(
    [*PAYLOADS.values(), *WRITING.values(), *SAFE_INVISIBLES, "\ufe0f", "👩", "ی", "a"]
)


@given(st.lists(st.one_of(PARTS, st.text(max_size=4)), max_size=8))
def test_pieces_together_give_what_the_whole_gives(pieces: list[str]) -> None:
    stream = SafeStream()
    together = "".join(stream.feed(piece) for piece in pieces) + stream.flush()
    whole = safe_text("".join(pieces))
    assert together == whole
    assert len(whole) == len("".join(pieces))
    assert safe_text(whole) == whole or any(joiner in whole for joiner in SAFE_INVISIBLES)
