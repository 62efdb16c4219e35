"""`fairdraft bench speculators`: one line of JSON, a table, a picture, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairdraft import pocket
from tests.cli.conftest import Cli

pytestmark = pytest.mark.skipif(
    not (pocket.path("target") / "config.json").is_file(), reason="no embedded models"
)
SMALL = ("--tokens", "6", "--rounds", "2", "--threads", "1", "-p", "The fox", "-p", "A boat")


def test_json_is_the_last_line_and_the_picture_is_drawn(cli: Cli, tmp_path: Path) -> None:
    picture = tmp_path / "deep" / "cells.svg"
    options = ("--temperature", "0", "-k", "2", "--json", "--picture", str(picture))
    result = cli("bench", "speculators", *SMALL, *options)
    assert result.code == 0, result.err
    [line] = result.out.splitlines()
    found = json.loads(line)
    assert found["schema"] == "fairdraft.bench.speculators/1"
    assert {"cpu", "cores", "torch", "commit"} <= found["conditions"].keys()
    cells = {cell["speculator"]: cell for cell in found["cells"]}
    assert {"plain", "draft_model", "ngram", "suffix"} <= cells.keys()
    draft = cells["draft_model"]
    assert draft["num_drafts"] == 2 and draft["parameters"] > 0 and draft["same_text"]
    assert draft["draft_ms"]["median"] > 0 < draft["verify_ms"]["median"]
    assert 1 <= draft["acceptance_length"] <= 3 and draft["tokens"] == 12
    assert picture.read_text().startswith("<?xml")


def test_table_has_a_line_for_each_cell(cli: Cli) -> None:
    config = '{"method": "ngram", "prompt_lookup_max": 2}'
    result = cli("bench", "speculators", *SMALL, "--temperature", "1", "-s", config)
    assert result.code == 0, result.err
    assert "1 thread; 2 requests a cell of 6 tokens, 2 prompts" in result.out
    assert [line.split("│")[2].strip() for line in result.out.splitlines() if "│" in line][1:] == [
        "plain",
        "ngram",
    ]
    # of two prompts
    assert result.out.count("(interval: at least 4 prompts)") == 1


def test_tokens_that_the_context_cuts_off_are_said_and_a_head_is_found(cli: Cli) -> None:
    """Each prompt is 2 ids, so that 5 of a context of 7 are left."""
    options = ("--max-model-len", "7", "--temperature", "0", "-k", "2", "-s", '{"method": "mtp"}')
    result = cli("bench", "speculators", *SMALL, *options)
    assert result.code == 0, result.err
    assert "--tokens 6: the context of 7 tokens ends requests after 5" in result.err
    assert "of 5 of 6 tokens, where the context ended" in result.out and "mtp" in result.out


def test_a_batch_of_several_lengths_is_compared_with_each_request_alone(cli: Cli) -> None:
    options = ("--batch", "3", "--rounds", "1", "--tokens", "5", "--threads", "1")
    options += ("--temperature", "1", "-k", "2", "-s", "mtp")
    result = cli("bench", "speculators", *options)
    assert result.code == 0, result.err
    assert "3 requests a cell of 5 tokens, 3 prompts of" in result.out
    assert "3 requests at a time" in result.out and result.out.count("3 of 3") == 2
    found = json.loads(cli("bench", "speculators", *options, "--json").out)
    low, high = found["prompt_tokens"]
    assert found["batch"] == 3 and low < high
    assert [cell["num_same_alone"] for cell in found["cells"]] == [3, 3]
    assert len(found["cells"][1]["by_draft"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-s", "no-such-model"), "no-such-model"),
        (("-s", "{"), "--speculator"),
        (("-s", "ngram", "-s", "ngram"), "given twice"),
        (("--picture", "cells.pdf"), ".png or .svg"),
        (("--temperature", "-1"), "temperature"),
        (("-s", "dspak"), "did you mean 'dspark'?"),
        (("-s", "auto"), "it chooses among speculators"),
        (("-s", "none"), "plain decoding is always measured"),
        (("-s", "prediction"), "the requests of a measurement predict nothing"),
    ],
)
def test_unusable_input_is_refused(cli: Cli, options: tuple[str, ...], message: str) -> None:
    result = cli("bench", "speculators", *SMALL, *options)
    assert result.code == 2 and message in result.err and not result.out
