"""The catalogue: every fault, where it is planted, and what the audit must say of it.

Planned tokens are twice the most that any of five pilot runs needed (seeds 101 to 105), rounded up,
and at least 500. Exceptions: `temperature-twice` has more; where one excluded token decides, the
plan leaves a chance of 1e-6 that none comes; rows that must PASS have tokens enough for that, and
the one that changes no token may take as many as it says. The
recorded run has seed 0. Plans and measured figures are in `docs/faults.md`.
"""

from __future__ import annotations

from fairdraft.audit.faults.case import Case
from fairdraft.audit.faults.common_faults import COMMON_FAULTS
from fairdraft.audit.faults.draft_faults import DRAFT_FAULTS
from fairdraft.audit.faults.fault import Fault
from fairdraft.audit.faults.noise_faults import NOISE_FAULTS, clamped
from fairdraft.audit.faults.processor_faults import PROCESSOR_FAULTS
from fairdraft.audit.faults.row_faults import ROW_FAULTS
from fairdraft.audit.faults.rule_faults import RULE_FAULTS
from fairdraft.audit.faults.setups import SETUPS
from fairdraft.audit.faults.tree_faults import TREE_FAULTS
from fairdraft.stats.verdict import VerdictState

__all__ = ["CASES", "FAULTS", "find_cases"]

#: every fault by name; texts of the toys end four tokens past the clamp
FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        *NOISE_FAULTS,
        clamped(17),
        *COMMON_FAULTS,
        *DRAFT_FAULTS,
        *RULE_FAULTS,
        *ROW_FAULTS,
        *PROCESSOR_FAULTS,
        *TREE_FAULTS,
    )
}


def _fails(
    fault: str,
    setup: str,
    num_tokens: int,
    *names: str,
    is_traced: bool | None = None,
) -> Case:
    return Case(FAULTS[fault], SETUPS[setup], num_tokens, names=names, is_traced=is_traced)


def _passes(fault: str, setup: str, num_tokens: int) -> Case:
    """Unbiased, by proof or measurement: the law test must pass it, the trace must name it."""
    return Case(FAULTS[fault], SETUPS[setup], num_tokens, VerdictState.PASS, is_traced=True)


def _changes_nothing(fault: str, setup: str, num_tokens: int) -> Case:
    """By proof no token changes, so the law test must not FAIL."""
    return Case(FAULTS[fault], SETUPS[setup], num_tokens, None)


def _changes_text(fault: str, num_tokens: int, *, fails: bool, is_traced: bool = False) -> Case:
    """Under rule common_noise: the text must change, and the law where `fails` says so."""
    expected = VerdictState.FAIL if fails else None
    setup = SETUPS["toy-common"]
    return Case(FAULTS[fault], setup, num_tokens, expected, is_traced=is_traced, keeps_text=False)


_PLANTED = (
    _fails("shared-noise", "pocket", 20_000, "shared noise", is_traced=True),
    _fails("common-below-ratio", "toy", 110_000, "shared noise", is_traced=True),
    _fails("position-names", "toy-block", 50_000, is_traced=True),
    _fails("constant-position", "toy", 1_500, "repeat", is_traced=True),
    _fails("clamped-positions", "toy", 20_000, "repeat", is_traced=True),
    _fails("off-by-one", "toy", 5_000, "repeat", is_traced=True),
    _fails("seed-ignored", "toy", 500, "agreement lag 0", is_traced=False),
    _fails("prompt-ignored", "toy-prompts", 500, "agreement lag 0", is_traced=True),
    _fails("seed-plus-position", "toy-counted", 500, "agreement lag 1", is_traced=True),
    _fails("shared-proposal", "pocket-short", 7_000, "agreement lag 0", is_traced=True),
    _fails("accept-reads-draft", "toy", 10_000, is_traced=True),
    _fails("column-hash", "toy-reference", 2_500),
    _fails("coarse-noise", "toy-wide-reference", 3_500),
    _passes("redrafted-position", "toy", 500_000),
    _passes("accept-reads-key", "toy", 500_000),
    _changes_text("common-drawn-again", 2_000, fails=True),
    _changes_text("common-one-behind", 1_000, fails=True, is_traced=True),
    _changes_text("common-one-ahead", 20_000, fails=False),
    _changes_text("common-named-as-ratio", 20_000, fails=False),
    _changes_text("common-from-draft", 20_000, fails=False),
    _fails("drawn-at-one", "pocket-cool", 1_500),
    _fails("unfiltered-q", "pocket-top-k", 3_000),
    _fails("raw-q", "pocket-cool", 6_000),
    _fails("argmax-as-sampled", "pocket", 500),
    _fails("rounded-draft", "toy", 200_000),
    _changes_nothing("guessed-from-two", "pocket-common", 3_000),
    _fails("dropped-after-looking", "pocket", 2_000),
    _fails("lenient-test", "toy-reference", 1_500),
    _fails("swapped-ratio", "toy-reference", 500),
    _fails("zero-coin", "toy-masked-reference", 2_500, "impossible token"),
    _fails("draft-leak", "pocket", 4_000),
    _fails("all-accepted", "pocket", 500),
    _fails("point-mass-as-softmax", "toy-greedy", 500, "point mass as softmax"),
    _fails("uncapped-ratio", "toy-block-reference", 3_000),
    _fails("replaced-from-p", "toy-reference", 1_500),
    _fails("replaced-from-q", "toy-reference", 500),
    _fails("softmaxed-residual", "toy-reference", 1_000),
    _fails("clamped-residual", "toy-masked-reference", 1_000, "impossible token"),
    _fails("masked-as-absent", "pocket-top-k", 7_000),
    _fails("forbidden-as-absent", "toy-forbidding", 2_000),
    _fails("bonus-from-draft", "pocket", 1_500),
    _fails("bonus-from-row-before", "pocket", 1_500),
    _fails("stale-rows", "pocket", 500),
    _fails("row-off-by-one", "pocket", 500),
    _fails("neighbors-q", "pocket", 1_000),
    _fails("warm-target", "pocket", 30_000, "temperature +5%"),
    _fails("temperature-dropped", "pocket-cool", 1_000),
    _fails("temperature-twice", "pocket-cool", 4_000),
    _fails("penalties-once-a-round", "pocket-penalized", 2_000),
    _fails("unbiased-bonus", "pocket-biased", 4_000),
    _fails("top-p-dropped", "toy-top-p", 200, "impossible token"),
    _fails("min-p-dropped", "toy-min-p", 200, "impossible token"),
    _fails("top-k-plus-one", "toy-top-k", 200, "impossible token"),
    _fails("siblings-scored-alone", "toy-tree-reference", 1_600),
    _fails("siblings-by-k-seq", "toy-tree-reference", 1_600),
    _fails("siblings-resorted", "toy-tree", 4_000),
    _fails("siblings-share-a-coin", "toy-tree", 2_500, is_traced=True),
)


def _controls() -> tuple[Case, ...]:
    """The clean path of each setup, to PASS or for as many tokens as any fault may take there."""
    most: dict[str, int] = {}
    for case in _PLANTED:
        most[case.setup.name] = max(most.get(case.setup.name, 0), case.num_tokens)
    return tuple(
        Case(
            None,
            SETUPS[name],
            num_tokens,
            None,
            is_traced=False,
            keeps_text=True if name == "toy-common" else None,
        )
        for name, num_tokens in most.items()
    )


#: planted faults, then the clean path of every setup
CASES: tuple[Case, ...] = (*_PLANTED, *_controls())


def find_cases(names: list[str] | tuple[str, ...]) -> tuple[Case, ...]:
    """The cases of the given names, in the catalogue's order; all of them for no name.

    Raises:
        ValueError: If there is no such case.
    """
    known = {case.name for case in CASES}
    for name in names:
        if name not in known:
            raise ValueError(f"no fault is named {name!r}; choose from {', '.join(sorted(known))}")
    return tuple(case for case in CASES if not names or case.name in names)
