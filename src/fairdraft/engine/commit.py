"""Commits a round: cuts each row where it ends, then writes tokens and counts.

Axes: B rows, K drafts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fairdraft.engine.logprobs import LogprobsMode, gather_logprobs, reported, tempered
from fairdraft.engine.request import FinishReason
from fairdraft.engine.round import Round
from fairdraft.engine.rows import RowTable
from fairdraft.engine.stopping import first_stop


def commit(
    rows: RowTable,
    result: Round,
    tokenizer: Any = None,
    logprobs_mode: LogprobsMode = "raw_logprobs",
) -> list[int]:
    """Writes what a round decided into the batch.

    A sequence ends at its first stop token or completed stop string, whatever else the block
    held; tokens, sources, logprobs, text and counts end with that token.

    Args:
        rows: The batch; changed in place.
        result: The round's tokens.
        tokenizer: Decodes the tokens of logprobs, or None.
        logprobs_mode: Which values logprobs report.

    Returns:
        Rows that ended, ascending; their sequences carry the reason.
    """
    kept, is_stopped = first_stop(
        result.token_ids, result.num_emitted_tokens, rows.stop_ids[: rows.num_rows]
    )
    with_text = rows["has_text"].nonzero()[0]
    by_string = _push_text(rows, result, kept, is_stopped, with_text) if len(with_text) else []
    _write_tokens(rows, result, kept)
    _write_counts(rows, result, kept)
    for row in (rows["num_logprobs"] >= 0).nonzero()[0].tolist():
        _write_logprobs(rows, result, row, int(kept[row]), tokenizer, logprobs_mode)
    num_decided = rows["num_decided"]
    rows["last_anchor"][:] = num_decided
    num_decided += kept

    ended = is_stopped | (num_decided >= rows["max_length"])
    if by_string or result.errors:
        ended[[*by_string, *result.errors]] = True
    finished: list[int] = ended.nonzero()[0].tolist()
    for row in finished:
        _note_end(rows, result, row, bool(is_stopped[row]))
    return finished


def _push_text(
    rows: RowTable, result: Round, kept: np.ndarray, is_stopped: np.ndarray, at: np.ndarray
) -> list[int]:
    """Feeds the text of rows that need it; returns those that a stop string ended."""
    ended: list[int] = []
    for row in at.tolist():
        sequence = rows.sequences[row]
        text = sequence.text
        assert text is not None
        num_shown = int(kept[row])
        if is_stopped[row] and not sequence.request.params.include_stop_str_in_output:
            num_shown -= 1
        # as in vLLM, the first min_tokens tokens complete no stop string
        num_early = rows["min_tokens"][row] - (
            rows["num_decided"][row] - rows["prompt_length"][row]
        )
        for index in range(num_shown):
            stop = text.push(
                int(result.token_ids[row, index]),
                int(result.sources[row, index]),
                may_stop=index >= num_early,
            )
            if stop is not None:
                sequence.finish_reason, sequence.stop_reason = FinishReason.STOP, stop
                kept[row], is_stopped[row] = index + 1, False
                ended.append(row)
                break
    return ended


def _write_tokens(rows: RowTable, result: Round, kept: np.ndarray) -> None:
    begin = rows["num_decided"]
    rows.reserve(max((begin + kept).tolist()))
    columns = np.arange(result.token_ids.shape[1])
    row, column = np.nonzero(columns[None, :] < kept[:, None])
    position = begin[row] + column
    rows.token_ids[row, position] = result.token_ids[row, column]
    rows.sources[row, position] = result.sources[row, column]


def _write_counts(rows: RowTable, result: Round, kept: np.ndarray) -> None:
    # drafts past a stop or a broken row have no outcome
    is_cut = kept < result.num_emitted_tokens
    if result.errors:
        is_cut[list(result.errors)] = True
    drafted = np.where(is_cut, kept, result.num_draft_tokens)
    accepted = np.minimum(result.num_accepted_tokens, kept)
    rounds, num_drafted, num_accepted = rows["rounds"], rows["drafted"], rows["accepted"]
    places = np.arange(num_drafted.shape[-1])
    rounds += 1
    num_drafted += places < drafted[:, None]
    num_accepted += places < accepted[:, None]
    if rows.schedule is not None:
        rows.schedule.note(rows.records[: rows.num_rows], drafted, accepted)


def _write_logprobs(
    rows: RowTable, result: Round, row: int, kept: int, tokenizer: Any, mode: LogprobsMode
) -> None:
    if not kept:
        return
    token_ids = torch.from_numpy(result.token_ids[row, :kept].copy())
    num_top = int(rows["num_logprobs"][row])
    logprobs = rows.sequences[row].logprobs
    assert logprobs is not None
    if mode.startswith("processed"):
        logits = tempered(result.processed_logits[row, :kept], float(rows["temperature"][row]))
    else:
        logits = result.target_logits[row, :kept]
    found = gather_logprobs(
        logits, token_ids.to(logits.device), num_top, normalized=mode.endswith("logprobs")
    )
    logprobs += [reported(entries, tokenizer) for entries in found]


def _note_end(rows: RowTable, result: Round, row: int, is_stopped: bool) -> None:
    sequence = rows.sequences[row]
    if is_stopped:
        end = int(rows["num_decided"][row])
        last = int(rows.token_ids[row, end - 1])
        sequence.finish_reason = FinishReason.STOP
        listed = sequence.request.params.stop_token_ids or ()
        sequence.stop_reason = last if last in listed else None
    elif sequence.finish_reason is not None:
        pass
    elif row in result.errors:
        sequence.finish_reason = FinishReason.ERROR
        sequence.request.error = result.errors[row]
    else:
        sequence.finish_reason = FinishReason.LENGTH
