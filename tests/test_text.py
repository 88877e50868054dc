"""Text of others, made fit for one line of a screen."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway.text import shown_text

BIDI = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
WITHOUT_WIDTH = [0x180E, 0x200B, *range(0x2060, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFC), 0xE0041]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("", ""),
        (7, "7"),
        (None, "None"),
        ("\x1b[31mred\x1b[0m", r"\u001b[31mred\u001b[0m"),
        ("a\tb\r\nc\0", r"a\u0009b\u000d\u000ac\u0000"),
        ("\x7f\x80\x9b", r"\u007f\u0080\u009b"),
        ("\u2028\u2029\u202e", r"\u2028\u2029\u202e"),
        ("\ud800", r"\ud800"),
        ("👩‍👩‍👧 é 中 שלום مرحبا", "👩‍👩‍👧 é 中 שלום مرحبا"),
        (r"C:\new", r"C:\new"),
        ("<b> & 'c' =1+1", "<b> & 'c' =1+1"),
    ],
)
def test_examples(value, shown):
    assert shown_text(value) == shown


def test_what_is_hidden_is_what_unicode_calls_control_surrogate_or_separator_and_marks_that_are_not_seen():
    for code in [*range(0x10000), 0x1F600, 0xE0041, 0x10FFFF]:
        character = chr(code)
        hidden = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or code in BIDI + WITHOUT_WIDTH
        if hidden != (shown_text(character) != character):
            pytest.fail(f"U+{code:04X}")


@pytest.mark.parametrize("most", [1, 2, 5, 80])
def test_a_long_text_is_cut_and_says_so(most):
    assert shown_text("x" * most, most) == "x" * most
    assert shown_text("x" * (most + 1), most) == "x" * (most - 1) + "…"
    assert shown_text("x" * 10_000_000, most) == "x" * (most - 1) + "…"


def test_an_escape_is_never_cut_in_two():
    assert shown_text("ab\u202ecd", 10) == r"ab\u202ecd"
    assert shown_text("ab\u202ecd", 9) == r"ab\u202e…"
    assert shown_text("ab\u202ecd", 8) == "ab…"
    assert shown_text("\0" * 100, 13) == r"\u0000\u0000…"


@given(st.text(st.characters()), st.integers(1, 90))
def test_always_one_short_line_that_a_file_can_hold(text, most):
    shown = shown_text(text, most)
    assert len(shown) <= most
    assert len(shown.splitlines()) <= 1
    assert not any(unicodedata.bidirectional(c) in ("LRO", "RLO", "LRE", "RLE", "PDF", "LRI", "RLI") for c in shown)
    shown.encode("utf-8")
    assert shown_text(shown, most) == shown
    if text.isprintable() and len(text) <= most:
        assert shown == text
