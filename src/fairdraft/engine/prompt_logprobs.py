"""Log-probabilities of the prompt's tokens, from the target's own forward as it prefills.

Axes: P tokens of the prompt, V the target's vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from fairdraft.engine.logprobs import Logprob, gather_logprobs, reported
from fairdraft.engine.rows import RowTable
from fairdraft.models import CausalLM
from fairdraft.models.causal_lm import OnBlock

#: logits computed at once
_MAX_NUMBERS = 1 << 24


def score_prompts(
    target: CausalLM, cache: Any, rows: RowTable, first_row: int, on_block: OnBlock | None
) -> list[int]:
    """Prefills the rows whose request wants logprobs of its prompt and has none yet.

    Args:
        target: The model.
        cache: Its cache; filled for these rows with all of the prompt but its last token.
        rows: The batch.
        first_row: First row to look at.
        on_block: As in `CausalLM.prefill`.

    Returns:
        The rows that are prefilled.
    """
    scored = []
    for row in range(first_row, rows.num_rows):
        request = rows.sequences[row].request
        num_top = request.params.prompt_logprobs
        if num_top is None or request.prompt_logprobs is not None:
            continue
        if rows.records["num_decided"][row] != len(request.prompt_token_ids):
            continue
        text = request.prompt_token_ids
        request.prompt_logprobs = _score(target, cache, row, text, num_top, on_block)
        scored.append(row)
    return scored


def _score(
    target: CausalLM,
    cache: Any,
    row: int,
    token_ids: list[int],
    num_top: int,
    on_block: OnBlock | None,
) -> list[dict[int, Logprob] | None]:
    found: list[dict[int, Logprob] | None] = [None]
    step = max(1, _MAX_NUMBERS // target.padded_vocab_size)
    for begin in range(0, len(token_ids) - 1, step):
        end = min(begin + step, len(token_ids) - 1)
        result = target.forward(
            torch.tensor([token_ids[begin:end]]),
            torch.tensor([begin]),
            cache,
            first_row=row,
            hidden_states=on_block is not None,
        )
        logits = result
        if on_block is not None:
            logits, states = result
            on_block(row, [begin], [end - begin], states)
        logits = logits[0, :, : target.vocab_size]
        following = torch.tensor(token_ids[begin + 1 : end + 1], device=logits.device)
        entries = gather_logprobs(logits, following, num_top)
        found += [reported(position, target.tokenizer) for position in entries]
    return found
