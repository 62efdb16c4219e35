"""What a plot is to the page that shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    """One plot, or the reason why there is none.

    Attributes:
        name: Letters and dashes.
        title: Heading.
        reading: How to read it and what it shows here, a sentence or two.
        svg: The element; empty if there is nothing to draw.
        missing: Why there is nothing to draw; empty if there is.
    """

    name: str
    title: str
    reading: str
    svg: str = ""
    missing: str = ""
