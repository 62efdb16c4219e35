"""Rows of `audit kernels --device`: their plans, the kernels by interpreter, the host's twin.

Kernels decode a few texts, and the host must give the same tokens under the same layout; what
thousands of such texts come to is then measured with the host's ops, which are fast on a CPU.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from fairdraft.audit.device_layouts import host_twin
from fairdraft.audit.kernels import ALPHA, DELTA, document
from fairdraft.audit.kernels.device import run, streams, trials
from fairdraft.audit.kernels.device.call import Call
from fairdraft.audit.kernels.device.rows import (
    DEVICE_ROWS,
    LARGE,
    WIDE_TRIALS,
    DeviceRow,
    device_rows_of,
)
from fairdraft.audit.kernels.device.setting import checked_device
from fairdraft.audit.kernels.device.streams import Streams, check_streams, stream_claim
from fairdraft.audit.kernels.judging import judge
from fairdraft.audit.kernels.naming import SHARED
from fairdraft.audit.kernels.result import Replay
from fairdraft.audit.kernels.rows import ROWS
from fairdraft.audit.kernels.trials import Trials
from fairdraft.audit.subject import InvalidSubject
from fairdraft.cli.document import dumps
from fairdraft.stats import num_trials_for
from fairdraft.stats.coupled import shared_noise_law
from fairdraft.stats.verdict import VerdictState

CPU = torch.device("cpu")
NAMED = {row.name: row for row in DEVICE_ROWS}
#: rows that the host's table does not have
OWN = [name for name in NAMED if name not in {row.name for row in ROWS}]
pytestmark = pytest.mark.usefixtures("numpy_may_warn")


def small(name: str, num_trials: int, eps: float = 1.0, **call: object) -> DeviceRow:
    """A row with fewer texts and a wider claim."""
    row = NAMED[name]
    experiment = replace(row.experiment, num_trials=num_trials, eps=eps)
    return replace(row, experiment=experiment, call=replace(row.call, **call))


@pytest.mark.parametrize(
    ("name", "num_texts"),
    [
        ("large token independent", 2),
        ("large point mass ours", 2),
        ("large sample gumbel", 2),
    ],
)
def test_kernels_decode_the_texts_that_the_host_decodes(name: str, num_texts: int) -> None:
    row = small(name, num_texts, arithmetic="portable")
    counted, replay = trials.run_row(row, 11 << 32, CPU)
    assert counted.num_trials == num_texts
    assert counted.num_impossible == 0
    assert replay == Replay(num_texts, 0, 0)


def test_kernels_decode_a_block_as_the_host_does() -> None:
    """Two drafts at one position under `salted`."""
    row = small("large block salted", 1, arithmetic="portable")
    decoding = replace(row.experiment.decoding, num_drafts=2)
    experiment = replace(row.experiment, decoding=decoding, num_tokens=1)
    row = replace(row, experiment=experiment, constant_position=True)
    assert trials.run_row(row, 3 << 32, CPU)[1] == Replay(1, 0, 0)


def test_planted_kernels_decode_the_biased_texts_and_no_others(monkeypatch) -> None:
    """Their tokens are those of the host's `coupled` ops, which thousands of texts then refuse.

    Ours has other tokens in each text with chance about .4.
    """
    row = small("regression coupled", 4, arithmetic="portable")
    own = trials.decode_on_host(replace(row, layout="ours"), trials.decoder_of(row, 0, CPU), 4)
    wanted: list[trials.Decoded] = []

    def kept(row: DeviceRow, decoder: trials.Decoder, count: int) -> trials.Decoded:
        wanted.append(decode_on_host(row, decoder, count))
        return wanted[-1]

    decode_on_host = trials.decode_on_host
    monkeypatch.setattr(trials, "decode_on_host", kept)
    assert trials.run_row(row, 0, CPU)[1] == Replay(4, 0, 0)
    assert not torch.equal(wanted[0].columns, own.columns)


@pytest.fixture
def on_host(monkeypatch) -> None:
    """The same decoder and the same layouts, with the host's ops in place of kernels."""

    def made(row: DeviceRow, key: int, device: torch.device) -> trials.Decoder:
        return replace(decoder_of(row, key, device), impl="auto")

    decoder_of = trials.decoder_of
    monkeypatch.setattr(trials, "decoder_of", made)
    monkeypatch.setattr(trials, "planted", host_twin)
    monkeypatch.setattr(trials, "chunk_of", lambda row: 8192)


def test_a_run_comes_to_what_is_expected(on_host, monkeypatch) -> None:
    """False alarm 1e-6 a row, false PASS .01; chi-square expects 170 where its limit is 58."""
    monkeypatch.setattr(run, "address_claim", lambda device: run.Claim("as the host", True))
    rows = [
        small("narrow K=1 coupled", 20_000, 0.02),
        small("large token salted", 20_000, 0.03),
        small("large token independent", 20_000, 0.03),
        small("large point mass ours", 20_000, 0.03),
        small("large sample fast", 20_000, 0.03),
        small("large spread ours", 8_000, 0.06),
    ]
    seen = []
    audit = run.run_on_device(
        rows, device="cpu", jobs=1, has_streams=False, on_progress=lambda step: seen.append(step)
    )
    assert audit.surprises == []
    assert [r.judgment.state for r in audit.results] == [VerdictState.FAIL] + [
        VerdictState.PASS
    ] * 5
    assert audit.results[0].judgment.diagnosis == SHARED
    assert all(r.replay is not None and r.replay.num_unlike == 0 for r in audit.results)
    assert [step.num_done for step in seen] == [1, 2, 3, 4, 5, 6]
    found = json.loads(dumps(document(audit)))
    assert found["rows"][4]["call"]["op"] == "sample"
    assert found["rows"][0]["replay"] == {"num_texts": 16, "num_unlike": 0, "num_allowed": 1}


def test_a_wide_planted_row_is_judged_without_a_warning(on_host) -> None:
    """Some laws of the tiled race leave tokens out, and some tokens are never seen."""
    row = small("wide coupled", 6_144)
    counted, _ = trials.run_row(row, 0, CPU)
    with np.errstate(invalid="raise"):
        assert np.isfinite(judge(row.experiment, counted).log10_e)


def test_texts_unlike_the_host_are_a_surprise(on_host) -> None:
    result = run.carry_out(small("large token ours", 2_000), 0, CPU)
    assert result.surprises == ()
    unlike = replace(result, replay=Replay(16, 2, 1))
    assert unlike.surprises == ("2 of 16 texts differ from the host's ops",)


def test_a_token_without_a_chance_fails() -> None:
    experiment = small("large token ours", 20_000, 0.5).experiment
    counts = np.round(experiment.law * 20_000).astype(np.int64)
    assert judge(experiment, Trials(counts, 0)).state == VerdictState.PASS
    assert judge(experiment, Trials(counts, 0, 1)).state == VerdictState.FAIL
    columns = torch.tensor([[1, 0], [-1, 3], [2, -1]])
    assert trials._cells(columns, 4).tolist() == [4, 16, 16]


def test_a_row_that_cannot_be_sampled_is_refused(on_host) -> None:
    row = small("large sample fast", 100)
    logits = row.experiment.pair.target_logits.copy()
    logits[0, 3] = np.nan
    pair = replace(row.experiment.pair, target_logits=logits)
    broken = replace(row, experiment=replace(row.experiment, pair=pair))
    with pytest.raises(InvalidSubject, match="large sample fast: 100 rows"):
        trials.run_row(broken, 0, CPU)


def test_kernels_are_compiled_as_the_row_runs_them(on_host, monkeypatch) -> None:
    row = small("large token ours", 100)
    assert trials.compile_row(row, "cpu") is None
    monkeypatch.setattr(trials, "planted", lambda name: 1 / 0)
    assert trials.compile_row(row, "cpu") == "large token ours: division by zero"


@pytest.mark.parametrize(
    "call",
    [
        Call(),
        Call(vocab_size=32_000),
        Call(vocab_size=1301, is_spread=True),
        Call(vocab_size=1301, is_spread=True, has_tail=True),
        Call(vocab_size=9, has_tail=True),
    ],
)
def test_wide_rows_have_the_law_of_their_columns(call: Call) -> None:
    law = np.array([[0.5, 0.2, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    wide = np.exp(call.widened(np.log(law)).astype(np.float64))
    columns = call.columns(4)
    assert wide.shape == (2, call.vocab_size) and columns.shape == (call.vocab_size,)
    np.testing.assert_array_equal((columns < 0).any(), not call.has_tail)
    np.testing.assert_array_equal(wide[:, columns < 0], 0.0)
    for column in range(4):
        np.testing.assert_allclose(wide[:, columns == column].sum(1), law[:, column], rtol=1e-5)
    tiles = np.unique(call.ids(4) // 512)
    assert len(tiles) == (3 if call.is_spread else 1)


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="8 columns do not fit a vocabulary of 7"):
        Call(vocab_size=7).ids(8)


def test_rows_are_named_once_and_hold_the_hosts_table() -> None:
    assert len(NAMED) == len(DEVICE_ROWS)
    for row in ROWS:
        device, experiment = NAMED[row.name], row.experiment
        assert device.expected == row.expected
        assert device.experiment.decoding.method == "race"
        assert (device.experiment.num_trials, device.experiment.eps) == (
            experiment.num_trials,
            experiment.eps,
        )
    quick = device_rows_of(quick=True)
    assert len(quick) == 9
    assert len({row.kernels for row in quick}) == 4
    assert {row.experiment.num_trials for row in quick} == {65_536, LARGE}


def measured(law: np.ndarray, drawn: np.ndarray, num_trials: int) -> tuple[float, float]:
    """Mean and deviation of the TV to `law` that texts of another law show."""
    counts = np.random.default_rng(0).multinomial(num_trials, drawn, size=200)
    distances = 0.5 * np.abs(counts / num_trials - law).sum(1)
    return float(distances.mean()), float(distances.std())


@pytest.mark.parametrize("name", OWN)
def test_a_right_sampler_passes_within_the_planned_texts(name: str) -> None:
    """The upper bound stays below eps but for 3e-5 of the seeds."""
    experiment = NAMED[name].experiment
    assert experiment.num_trials >= WIDE_TRIALS or name.startswith("32k ")
    mean, deviation = measured(experiment.law, experiment.law, experiment.num_trials)
    margin = math.sqrt(math.log(1 / DELTA) / (2 * experiment.num_trials))
    assert mean + 4 * deviation + margin < experiment.eps


@pytest.mark.parametrize("name", [name for name in OWN if NAMED[name].expected.diagnosis])
def test_the_planted_layout_is_seen_within_the_planned_texts(name: str) -> None:
    experiment = NAMED[name].experiment
    p, q = experiment.first_law, experiment.draft_law
    bug = shared_noise_law(p[None], q[None], None, "race")[0]
    assert experiment.num_trials >= num_trials_for(
        null_probs=p, alternative_probs=bug / bug.sum(), false_alarm=ALPHA / 2, miss=1e-6
    )


def test_streams_are_drawn_by_the_kernels(monkeypatch) -> None:
    """Under `coupled` draft and residual are one draw; two of 600 ids are apart."""
    monkeypatch.setattr(streams, "_TAIL", 1 - 1e-6)
    found = check_streams("coupled", CPU, vocab_size=600, num_positions=2)
    assert found.num_pairs == (2, 2)
    assert found.num_agreeing == (0, 2)
    assert found.repeats


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"num_agreeing": (0, 41_900)}, False),
        ({"num_agreeing": (7, 0)}, False),
        ({"repeats": False}, False),
        ({"tail_shares": (0.2, 0.2, 0.205)}, False),
        ({"layout": "coupled", "num_agreeing": (0, 41_900)}, True),
        ({"layout": "coupled"}, False),
    ],
)
def test_streams_must_part_keep_the_tail_and_repeat(change: dict, holds: bool) -> None:
    right = Streams("ours", 1 << 20, (0.2001, 0.1999, 0.2), (41_950, 41_900), (0, 1), True)
    assert stream_claim(replace(right, **change)).holds is holds


def test_devices_that_run_no_kernels_are_refused(monkeypatch) -> None:
    assert checked_device("cpu") == CPU
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="interpreter alone"):
        checked_device("cpu")
    with pytest.raises(ValueError, match="device = 'tpu' is unknown"):
        checked_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="finds no GPU"):
        checked_device("cuda")


def test_one_name_for_two_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        run.run_on_device([DEVICE_ROWS[0], DEVICE_ROWS[0]], device="cpu")
