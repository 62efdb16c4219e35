"""The one table after a run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import ROUNDED
from rich.table import Table

from fairdraft.cli.compare import Comparison
from fairdraft.cli.summary import Summary

MAX_LISTED_KEYS = 8


def summary_table(
    summary: Summary, keys: Sequence[str], comparison: Comparison | None = None
) -> Table:
    """Returns a table of speed, acceptance, times and the keys that replay the texts.

    Args:
        summary: Figures of the run.
        keys: Noise key of each request.
        comparison: Plain decoding beside it, or None.
    """
    table = Table(box=ROUNDED, show_header=False, pad_edge=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    speculated = summary.num_draft_tokens > 0
    requests = "" if summary.num_requests == 1 else f", {summary.num_requests} requests"
    failed = f", {summary.num_failed} failed" if summary.num_failed else ""
    if summary.lossy is not None:
        table.add_row("lossy", summary.lossy, "the text does not follow the target's law")
    table.add_row(
        "tokens/s",
        f"{summary.tokens_per_second:.1f}",
        f"{summary.num_tokens} tokens in {summary.seconds:.2f} s{requests}{failed}",
    )
    table.add_row(
        "acceptance length", f"{summary.acceptance_length:.2f}", "tokens a round, bonus included"
    )
    if speculated:
        shares = "  ".join(_share(value) for value in summary.acceptance_per_position)
        table.add_row("acceptance by position", "", f"[not dim]{shares}[/]")
    table.add_row("rounds", str(summary.rounds), "each is one pass of the target over its row")
    table.add_row(
        "target passes saved",
        str(summary.target_passes_saved),
        f"of the {summary.num_tokens} that plain decoding takes",
    )
    for name, seconds in (
        ("time in draft", summary.draft_seconds),
        ("time in target", summary.target_seconds),
        ("time in verify", summary.verify_seconds),
        ("time elsewhere", summary.other_seconds),
    ):
        share = seconds / summary.seconds if summary.seconds > 0.0 else 0.0
        table.add_row(name, f"{seconds:.3f} s", f"{share:.0%}")
    if comparison is not None:
        _add_comparison(table, comparison)
    _add_keys(table, keys)
    return table


def _add_comparison(table: Table, comparison: Comparison) -> None:
    table.add_section()
    low, high = min(comparison.ratios), max(comparison.ratios)
    runs = f"median of {len(comparison.ratios)} interleaved runs"
    table.add_row("plain tokens/s", f"{comparison.plain_median:.1f}", runs)
    table.add_row("speculative tokens/s", f"{comparison.speculative_median:.1f}", runs)
    table.add_row("speed-up", f"{comparison.ratio_median:.2f}x", f"{low:.2f} to {high:.2f}")
    if comparison.same_greedy_text is not None:
        word = "yes" if comparison.same_greedy_text else "no"
        table.add_row("same greedy text", word, "plain and speculative, token by token")


def _add_keys(table: Table, keys: Sequence[str]) -> None:
    table.add_section()
    if len(keys) == 1:
        table.add_row("noise key", keys[0], f"--noise-key {keys[0]} replays this text")
        return
    for number, key in enumerate(keys[:MAX_LISTED_KEYS], start=1):
        table.add_row(f"noise key {number}", key, f"--noise-key {key}")
    if len(keys) > MAX_LISTED_KEYS:
        rest = len(keys) - MAX_LISTED_KEYS
        table.add_row("", f"and {rest} more", "--json lists them all")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
