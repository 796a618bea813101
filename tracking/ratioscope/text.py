"""How reports write numbers and names that come from outside."""

from __future__ import annotations

import math
import re
import unicodedata

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Terminal control sequences, ECMA-48: CSI, OSC and two-character ones."""

_FRACTIONS = ("/modified/", "frac_modified", "/ess/", "tokens/invalid", "rows/empty", "/outside/", "max_weight_share")


def number(value: float | None) -> str:
    """Four significant digits, without an exponent where that is short; ``–`` for what was not measured."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3e}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def percent(value: float | None) -> str:
    """A fraction as a percentage, with three significant digits or, near all, four.

    What is neither none nor all is never shown as that.
    """
    if value is None or math.isnan(value):
        return "–"
    if 0 < value < 1e-5:
        return "< 0.001 %"
    if 0.99995 <= value < 1:
        return "> 99.99 %"
    return f"{100 * value:.4g} %" if value > 0.9 else f"{100 * value:.3g} %"


def shown(key: str, value: float | None) -> str:
    """A statistic as a report writes it: fractions in percent, all else as a number."""
    return percent(value) if any(part in key for part in _FRACTIONS) else number(value)


def count(n: int, noun: str) -> str:
    """A number of things: ``1 window``, ``1,234 windows``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def steps(first: int, last: int) -> str:
    """Range of steps in words: ``step 3`` or ``steps 1 to 3``."""
    return f"step {first}" if first == last else f"steps {first} to {last}"


def plain(text: str, limit: int | None = None) -> str:
    """Any text on one line: terminal sequences dropped, control and invisible characters replaced, the middle cut out.

    Args:
        text: from outside.
        limit: most characters that are left.
    """
    text = _ESCAPES.sub("", text)
    # Cc, Cf, Cs: control, formatting (also those that reverse the direction of text), halves of surrogate pairs.
    text = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in {"Cc", "Cf", "Cs"} else c for c in text)
    if limit is None or len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}…{text[len(text) - (limit - head - 1) :]}"
