"""What tables of rows with an expected verdict share: the colors and the last sentence."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from fairdraft.stats.verdict import VerdictState

__all__ = ["STATE_STYLES", "closing"]

STATE_STYLES = {
    VerdictState.PASS: "dark_cyan",
    VerdictState.FAIL: "bold red3",
    VerdictState.BIASED_WITHIN_TOLERANCE: "dodger_blue3",
    VerdictState.INCONCLUSIVE: "yellow3",
}


def closing(count: int, seconds: float, surprises: Sequence[str]) -> Text:
    """Says whether every row came to what was expected.

    Args:
        count: Rows.
        seconds: The run took.
        surprises: What is not as expected, a sentence each.
    """
    if not surprises:
        sentence = f"All {count} rows came to what was expected, in {seconds:.0f} s."
        return Text(sentence, "bold dark_cyan")
    text = Text(f"Not as expected, after {count} rows and {seconds:.0f} s:", style="bold red3")
    for sentence in surprises:
        text.append(f"\n  {sentence}", style="none")
    return text
