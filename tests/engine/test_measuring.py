"""What is measured of speculators: counts are exact, cells take turns, names are their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fairdraft import pocket
from fairdraft.engine import LLM
from fairdraft.engine.choice.candidates import most_drafts
from fairdraft.engine.measuring import (
    MIN_PROMPTS,
    PROMPTS,
    Candidate,
    RequestFailed,
    available,
    default_prompts,
    measure_speculators,
    named,
)
from fairdraft.engine.measuring.workload import Workload
from fairdraft.models import CausalLM, load_model
from tests.engine.toys import chain_table, table_model

ORDER = list(range(12)) * 2


@pytest.fixture(scope="module")
def target() -> CausalLM:
    """Counts up from the last token, and begins again at 0."""
    return load_model(table_model(chain_table([*range(12), 0], 12)))


def counting(ids: np.ndarray, most: int) -> list[int]:
    return [(int(ids[-1]) + i) % 12 for i in range(1, most + 1)]


def custom(function: Any, **options: Any) -> dict[str, Any]:
    return {"method": "custom", "model": function, **options}


def test_cells_hold_what_the_engine_counted(target: CausalLM) -> None:
    """A drafter that is always right, K = 3: four tokens a round, the last round cut."""
    seen = []
    found = measure_speculators(
        target,
        named([custom(counting), {"method": "ngram"}]),
        prompts=[[0, 1], [4]],
        num_drafts=3,
        num_tokens=8,
        temperatures=(0.0, 1.0),
        samples=4,
        on_sample=lambda done, total, seconds: seen.append((done, total)),
    )
    cells = {(cell.speculator, cell.temperature): cell for cell in found.cells}
    assert list(cells)[:3] == [("plain", 0.0), ("custom", 0.0), ("ngram", 0.0)]
    right = cells["custom", 0.0]
    assert (right.rounds, right.tokens, right.acceptance_length) == (8, 32, 4.0)
    assert right.interval is None and right.by_draft == [1.0, 1.0, 1.0]
    assert right.num_drafts == 3 and right.parameters == 0
    plain = cells["plain", 0.0]
    assert (plain.rounds, plain.num_drafts, plain.over_plain.median) == (32, 0, 1.0)
    assert all(cell.same_text is (True if t == 0 else None) for (_, t), cell in cells.items())
    assert seen == [(i + 1, 30) for i in range(30)]
    assert found.refused == {}
    assert found.as_dict()["cells"][1]["tokens_per_second"].keys() == {"median", "p25", "p75"}


def test_a_tree_says_its_own_k(target: CausalLM) -> None:
    """No K of the command is tried on it: of the depths up to 4, halving would not meet 3."""
    tree = named([{"method": "suffix", "speculative_token_tree": [2, 1, 1]}], is_asked=True)
    found = measure_speculators(
        target, tree, prompts=[ORDER], num_drafts=4, num_tokens=8, temperatures=(0.0,)
    )
    assert [cell.num_drafts for cell in found.cells] == [0, 3]
    assert found.cells[1].acceptance_length == 4.0 and found.cells[1].same_text


def test_an_interval_takes_four_prompts_and_is_never_empty(target: CausalLM) -> None:
    """Always right drafts: four prompts that are all alike do not make it certain."""
    options: dict[str, Any] = {"num_drafts": 3, "num_tokens": 8, "temperatures": (0.0,)}
    asked = named([custom(counting)])
    for count in (3, MIN_PROMPTS):
        prompts = [[i] for i in range(count)]
        found = measure_speculators(target, asked, prompts=prompts, samples=2 * count, **options)
        plain, right = found.cells
        assert right.acceptance_length == 4.0 and plain.acceptance_length == 1.0
        if count < MIN_PROMPTS:
            assert right.interval is plain.interval is None
        else:
            assert right.interval == pytest.approx((4 - 3 * (1 - 0.05**0.25), 4.0))
            assert plain.interval == (1.0, 1.0)


def test_a_batch_is_counted_by_prompt_and_its_texts_are_those_made_alone(target: CausalLM) -> None:
    """Six requests of five prompts of several lengths, in two turns of three."""
    seen = []
    found = measure_speculators(
        target,
        named([custom(counting)]),
        prompts=[[0, 1], [4], [5, 6, 7, 8], [2] * 3, [9]],
        num_drafts=3,
        num_tokens=8,
        batch=3,
        temperatures=(0.0, 1.0),
        samples=2,
        on_sample=lambda done, total, seconds: seen.append((done, total)),
    )
    assert (found.batch, found.num_prompts, found.prompt_tokens) == (3, 5, (1, 4))
    for cell in found.cells:
        assert (cell.tokens, cell.num_same_alone) == (48, 3)
        assert cell.rounds == (48 if cell.speculator == "plain" else 12)
        # five prompts, one of them twice
        assert cell.interval is not None
    # a warm-up, two turns, and the first one's requests alone
    assert seen == [(3 * (i + 1), 48) for i in range(16)]


def test_a_text_that_knows_its_batch_is_seen(
    target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the last of several requests gets the seed of the first."""
    generate = Workload._generate

    def same_noise(self: Workload, llm: LLM, temperature: float, numbers: Sequence[int]) -> Any:
        wrong = [*numbers[:-1], numbers[0]] if len(numbers) > 1 else numbers
        return generate(self, llm, temperature, wrong)

    monkeypatch.setattr(Workload, "_generate", same_noise)
    options: dict[str, Any] = {"num_tokens": 4, "batch": 3, "temperatures": (1.0,), "samples": 1}
    found = measure_speculators(target, [], prompts=[[0], [4], [5]], **options)
    assert [cell.num_same_alone for cell in found.cells] == [2]


def test_prompts_of_a_batch_have_different_lengths() -> None:
    assert default_prompts(1) == PROMPTS
    lengths = [len(text.split(" ")) for text in default_prompts(8)]
    assert lengths[:8] == [3, 4, 5, 6, 7, 8, 9, 10]
    pairs = zip(PROMPTS, default_prompts(8), strict=True)
    assert all(whole.startswith(part) for whole, part in pairs)
    # of twelve prompts in batches of eight each twice
    assert Workload(PROMPTS, 1, 8).num_even_turns == 3
    assert Workload(PROMPTS, 1).num_even_turns == 12


def test_what_cannot_be_used_is_said_or_refused(target: CausalLM) -> None:
    broken = Candidate("broken", {"method": "eagle3", "model": "no such head"})
    options: dict[str, Any] = {"prompts": [[0]], "num_tokens": 2, "temperatures": (0.0,)}
    found = measure_speculators(target, [broken], **options)
    assert "no such folder" in found.refused["broken"]
    assert [cell.speculator for cell in found.cells] == ["plain"]
    with pytest.raises(ValueError, match="no such folder"):
        measure_speculators(target, [Candidate("broken", broken.config, True)], **options)
    nothing = named([{"method": "prediction"}], is_asked=True)
    with pytest.raises(ValueError, match="predict nothing"):
        measure_speculators(target, nothing, **options)
    wrong = named([custom(lambda ids, most: [99])])
    with pytest.raises(RequestFailed, match="99"):
        measure_speculators(target, wrong, **options)
    with pytest.raises(ValueError, match="temperatures"):
        measure_speculators(target, [], prompts=[[0]], temperatures=(1.0, 1))
    with pytest.raises(ValueError, match="samples=0"):
        measure_speculators(target, [], **options, samples=0)
    with pytest.raises(ValueError, match="batch=0"):
        measure_speculators(target, [], **options, batch=0)


def test_every_candidate_has_a_name_of_its_own() -> None:
    ngram = {"method": "ngram"}
    longer = ngram | {"prompt_lookup_max": 7}
    heads = [{"method": "eagle3", "model": f"heads/{name}"} for name in "ab"]
    alone = {"method": "suffix", "num_speculative_tokens": 3}
    few = [heads[0] | {"num_speculative_tokens": count} for count in (2, 3)]
    names = [candidate.name for candidate in named([ngram, longer, *heads, alone])]
    assert names == ["ngram", "ngram prompt_lookup_max=7", "eagle3 a", "eagle3 b", "suffix"]
    assert [candidate.name for candidate in named(few)] == ["eagle3 K=2", "eagle3 K=3"]
    with pytest.raises(ValueError, match="given twice"):
        named([ngram, ngram])


def test_most_drafts_is_the_largest_k_that_is_taken() -> None:
    def make(count: int) -> str:
        if count > 2:
            raise ValueError(f"{count} are too many")
        return "made"

    assert most_drafts(make, 5) == (2, "made")

    def refuse(count: int) -> str:
        raise ValueError(f"not {count}")

    with pytest.raises(ValueError, match="not 5"):
        most_drafts(refuse, 5)


def test_what_is_at_hand(target: CausalLM) -> None:
    assert [c.name for c in available(target)] == ["ngram", "suffix"]
    if not (pocket.path("target") / "config.json").is_file():
        pytest.skip("no embedded models")
    names = [c.name for c in available(load_model("pocket"))]
    assert names[0] == "draft_model" and names[-2:] == ["ngram", "suffix"]
