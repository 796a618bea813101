"""Text of reports: numbers, fractions, and text from outside made safe for one line."""

from __future__ import annotations

import math
import re
import unicodedata

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Terminal control sequences, ECMA-48: CSI, OSC and two-character ones."""

_SPACES = re.compile(r"^ +| +$|  +")
_BLANK = {"\u115f", "\u1160", "\u2800", "\u3164", "\uffa0"}
"""Letters and symbols without ink."""
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"}
"""Unicode categories of characters without ink."""
_SYMBOLS = {" ": " ", "\n": "↵", "\t": "⇥", "\x7f": "\N{SYMBOL FOR DELETE}"}

_FRACTIONS = ("/modified/", "frac_modified", "/ess/", "tokens/invalid", "rows/empty", "/outside/", "max_weight_share")


def number(value: float | None) -> str:
    """Writes four significant digits, without an exponent where that is short; ``–`` for a missing value."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3e}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def percent(value: float | None) -> str:
    """Writes a fraction as a percentage, with three significant digits, or four above 90 %.

    A value strictly between 0 and 1 is never written as 0 % or 100 %.
    """
    if value is None or math.isnan(value):
        return "–"
    if 0 < value < 1e-5:
        return "< 0.001 %"
    if 0.99995 <= value < 1:
        return "> 99.99 %"
    return f"{100 * value:.4g} %" if value > 0.9 else f"{100 * value:.3g} %"


def shown(key: str, value: float | None) -> str:
    """Writes a statistic: a fraction in percent, anything else as a number."""
    return percent(value) if any(part in key for part in _FRACTIONS) else number(value)


def count(n: int, noun: str) -> str:
    """Writes a count with its noun: ``1 window``, ``1,234 windows``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def steps(first: int, last: int) -> str:
    """Range of steps in words: ``step 3`` or ``steps 1 to 3``."""
    return f"step {first}" if first == last else f"steps {first} to {last}"


def step_of(step: int, split: str) -> str:
    """Step of a window, with its split unless that is ``train``: ``1,200`` or ``1,200 (eval)``."""
    return f"{step:,}" if split == "train" else f"{step:,} ({split})"


def plain(text: str, limit: int | None = None) -> str:
    """Puts any text on one line: drops terminal sequences, replaces control and invisible characters.

    Args:
        text: text from outside.
        limit: the largest number of characters; a longer text loses its middle.
    """
    text = _ESCAPES.sub("", text)
    # Cc, Cf, Cs: control, formatting (also those that reverse the direction of text), halves of surrogate pairs.
    text = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in {"Cc", "Cf", "Cs"} else c for c in text)
    if limit is None or len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}…{text[len(text) - (limit - head - 1) :]}"


def visible(text: str) -> str:
    """Puts a token's text on one line on which every character can be seen.

    Spaces at its ends and several in a row become ``␣``, line breaks ``↵``, tabs ``⇥``, other control characters their
    Unicode pictures (``␛``), and other invisible characters their code, as in ``⟨U+200B⟩``.
    """
    text = _SPACES.sub(lambda match: "␣" * len(match.group()), text)
    symbols = "".join(map(_visible, text))
    # A combining mark needs a character to stand on.
    return f"◌{symbols}" if text and unicodedata.category(text[0]).startswith("M") else symbols


def _visible(character: str) -> str:
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    if character in _BLANK or unicodedata.category(character) in _INVISIBLE:
        return f"⟨U+{ord(character):04X}⟩"
    return character
