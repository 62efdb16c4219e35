"""Numbers as people read them."""

from __future__ import annotations

import math
import re


def count(number: int) -> str:
    """12345 as "12,345"."""
    return f"{number:,}"


def short_count(number: float) -> str:
    """A count in at most five characters: 950, 12k, 4.2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def distance(value: float | None) -> str:
    """A total variation with four decimals, a dash where there is none."""
    return "–" if value is None else f"{value:.4f}"


def percent(share: float) -> str:
    """A share of 1 in percent with two useful digits."""
    value = 100.0 * share
    return f"{value:.0f}%" if value >= 10.0 else f"{value:.2g}%"


def exponent(log10: float) -> str:
    """The exponent of evidence with one decimal: "3.2", "-0.4", "∞"."""
    if math.isinf(log10):
        return "∞" if log10 > 0 else "-∞"
    return f"{log10:.1f}"


def power_of_ten(log10: float) -> str:
    """Evidence in text: "10^3.2", "10^6"; infinite: "∞"."""
    if math.isinf(log10):
        return exponent(log10).replace("-∞", "0")
    return f"10^{exponent(log10).removesuffix('.0')}"


def odds(log10: float) -> str:
    """Evidence against a right sampler: "10^3.2 : 1", or none at all."""
    return f"{power_of_ten(log10)} : 1" if log10 > 0.05 else "none"


def chance(log10_e: float) -> str:
    """How rarely a right sampler shows so much evidence, in words (Ville: at most 1 / E)."""
    if math.isinf(log10_e) and log10_e > 0:
        return "never"
    if log10_e <= 0.0:
        return "always possible"
    if log10_e < 2.0:
        return f"in at most {percent(10.0**-log10_e)} of the runs"
    if log10_e < 6.05:
        odds = 10.0**log10_e
        digits = 10 ** max(0, int(math.floor(log10_e)) - 1)
        return f"in at most 1 of {count(int(odds // digits) * digits)} runs"
    return f"in at most 1 of {power_of_ten(math.floor(log10_e * 10) / 10)} runs"


def grouped(text: str) -> str:
    """A sentence with thousands separators in its counts of tokens."""
    return re.sub(r"\b\d{4,}(?= tokens| seen)", lambda found: count(int(found.group())), text)


def sentence(clause: str) -> str:
    """A clause as a sentence: a capital first, a full stop last."""
    text = clause[:1].upper() + clause[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def duration(seconds: float) -> str:
    """A time span: "8 s", "3 min 20 s", "2 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def plural(number: int, noun: str) -> str:
    """ "1 token", "3 tokens"."""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")
