"""Text of tokens as people see it: nothing in it is invisible, breaks a line or turns its direction around."""

from __future__ import annotations

import re
import unicodedata

_SPACES = re.compile(r"^ +| +$|  +")
_BLANK = {"\u115f", "\u1160", "\u2800", "\u3164", "\uffa0"}
"""Letters and symbols that look like nothing."""
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"}
_SHOWN = {" ": " ", "\n": "↵", "\t": "⇥", "\x7f": "\N{SYMBOL FOR DELETE}"}


def visible(text: str) -> str:
    """The text on one line.

    Spaces at its ends and several in a row become ``␣``, line breaks ``↵``, tabs ``⇥``, other control characters their
    Unicode pictures (``␛``), and what else cannot be seen its code, as in ``⟨U+200B⟩``.
    """
    text = _SPACES.sub(lambda found: "␣" * len(found.group()), text)
    shown = "".join(map(_shown, text))
    return f"◌{shown}" if text and unicodedata.category(text[0]).startswith("M") else shown


def _shown(character: str) -> str:
    if character in _SHOWN:
        return _SHOWN[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    if character in _BLANK or unicodedata.category(character) in _UNSEEN:
        return f"⟨U+{ord(character):04X}⟩"
    return character
