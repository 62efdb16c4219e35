"""From options to vLLM's dictionary."""

from __future__ import annotations

from typing import Any

import pytest

from fairdraft.cli.failure import UsageFault
from fairdraft.cli.speculation import METHODS, NUM_DRAFTS, describe, speculative_config, with_method

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
        ("pocket", {"draft": "d"}, {"model": "d"}),
        ("pocket", {"draft": "pocket-mtp"}, {"method": "mtp", "model": "pocket-mtp"}),
        ("pocket", {"method": "dspark"}, {"method": "dspark", "model": "pocket-dspark"}),
        (
            "pocket",
            {
                "method": "auto",
                "config_json": '{"candidates": [{"method": "dspark"}, {"method": "ngram"}]}',
            },
            {
                "method": "auto",
                "candidates": [
                    {"method": "dspark", "model": "pocket-dspark"},
                    {"method": "ngram"},
                ],
            },
        ),
        (
            "other",
            {"method": "auto", "config_json": '{"candidates": [{"method": "dspark"}]}'},
            {"method": "auto", "candidates": [{"method": "dspark"}]},
        ),
        ("smollm2", {}, {"method": "ngram"}),
        (
            "smollm2",
            {"num_speculative_tokens": 2},
            {"method": "ngram", "num_speculative_tokens": 2},
        ),
        ("smollm2", {"draft": "d"}, {"model": "d"}),
        ("smollm2", {"method": "none"}, None),
        ("other", {}, None),
        ("other", {"draft": "d"}, {"model": "d"}),
        ("other", {"config_json": '{"method": "ngram"}'}, {"method": "ngram"}),
        (
            "other",
            {"config_json": '{"model": "d"}', "draft": "d"},
            {"model": "d"},
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
        ({"num_speculative_tokens": 0, "draft": "d"}, "for no speculation use --method none"),
        ({"method": "dspak"}, "did you mean 'dspark'"),
        ({"method": "whatever"}, "use one of draft_model, ngram, .*, custom, none, auto"),
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


def test_methods_are_those_of_the_engine_and_two_words_more() -> None:
    from fairdraft.engine import config

    assert (*config.METHODS, "none", "auto") == METHODS
    assert config.NUM_DRAFTS == NUM_DRAFTS


def test_a_method_that_was_left_open_is_the_drafters() -> None:
    assert with_method(None) is None
    assert with_method({"method": "ngram"}) == {"method": "ngram"}
    assert with_method({"model": "d"}) == {"method": "draft_model", "model": "d"}
    assert with_method({"model": "pocket-mtp"}) == {"method": "mtp", "model": "pocket-mtp"}


def test_description_names_speculator_and_k() -> None:
    assert describe(None) == "no speculator"
    assert describe({"method": "ngram"}) == "ngram, K = 4"
    assert describe({"model": "d"}) == "draft d, K = 4"
    assert describe(POCKET | {"num_speculative_tokens": 2}) == "draft pocket-draft, K = 2"
