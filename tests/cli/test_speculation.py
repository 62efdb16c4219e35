"""From options to vLLM's dictionary."""

from __future__ import annotations

from typing import Any

import pytest

from fairdraft.cli.failure import UsageFault
from fairdraft.cli.speculation import describe, speculative_config

NOTHING: dict[str, Any] = {
    "draft": None,
    "method": None,
    "config_json": None,
    "num_speculative_tokens": None,
}
POCKET = {"method": "draft_model", "model": "pocket-draft"}


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("pocket", {}, POCKET),
        ("pocket", {"num_speculative_tokens": 2}, POCKET | {"num_speculative_tokens": 2}),
        ("pocket", {"method": "draft_model"}, POCKET),
        ("pocket", {"method": "ngram"}, {"method": "ngram"}),
        ("pocket", {"method": "none"}, None),
        ("pocket", {"draft": "d"}, {"method": "draft_model", "model": "d"}),
        ("smollm2", {}, {"method": "ngram"}),
        (
            "smollm2",
            {"num_speculative_tokens": 2},
            {"method": "ngram", "num_speculative_tokens": 2},
        ),
        ("smollm2", {"draft": "d"}, {"method": "draft_model", "model": "d"}),
        ("smollm2", {"method": "none"}, None),
        ("other", {}, None),
        ("other", {"draft": "d"}, {"method": "draft_model", "model": "d"}),
        ("other", {"config_json": '{"method": "ngram"}'}, {"method": "ngram"}),
        (
            "other",
            {"config_json": '{"model": "d"}', "draft": "d"},
            {"method": "draft_model", "model": "d"},
        ),
        (
            "pocket",
            {"config_json": '{"draft_sample_method": "greedy"}'},
            POCKET | {"draft_sample_method": "greedy"},
        ),
        (
            "pocket",
            {"config_json": '{"rejection_sample_method": "block"}'},
            POCKET | {"rejection_sample_method": "block"},
        ),
    ],
)
def test_options_become_a_dictionary(model: str, options: dict, expected: dict | None) -> None:
    assert speculative_config(model, **(NOTHING | options)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_speculative_tokens": 3}, "without a speculator"),
        ({"config_json": '{"draft_sample_method": "greedy"}'}, "draft_sample_method given without"),
        ({"config_json": "{"}, "is no JSON"),
        ({"config_json": "[]"}, "is no JSON object"),
        ({"config_json": '{"model": "a"}', "draft": "b"}, "--draft b and 'model'"),
        ({"method": "none", "draft": "d"}, "leave out --draft"),
        ({"method": "none", "config_json": "{}"}, "leave out --speculative-config"),
    ],
)
def test_contradictions_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UsageFault, match=message):
        speculative_config("other", **(NOTHING | options))


def test_description_names_speculator_and_k() -> None:
    assert describe(None) == "no speculator"
    assert describe({"method": "ngram"}) == "ngram, K = 4"
    assert describe(POCKET | {"num_speculative_tokens": 2}) == "draft pocket-draft, K = 2"
