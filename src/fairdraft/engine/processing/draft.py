"""The same processors on draft logits: q is then the processed law, closer to the target's.

Verification is exact for any q, so this changes how many drafts stand and nothing else.
Axes: N rows that draft, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fairdraft.engine.processing.device import process_on_device
from fairdraft.engine.processing.order import process
from fairdraft.engine.processing.target import grammars_of, plans_of, tallies_of
from fairdraft.engine.rows import RowTable
from fairdraft.ops import Impl
from fairdraft.ops.dispatch import resolve_impl
from fairdraft.ops.processors import DraftedPaths
from fairdraft.ops.token_tree import chain_of


class DraftProcessing:
    """Processes draft logits of one round, step by step; see `SharedSampler.process`."""

    def __init__(self, rows: RowTable, impl: Impl = "auto") -> None:
        self._rows = rows
        self._impl: Impl = impl

    def __call__(self, logits: Tensor, at: np.ndarray, drafts: np.ndarray) -> Tensor:
        """Processes the laws of the next draft.

        Args:
            logits: Over the target's vocabulary [N, V]; left alone.
            at: Rows of the batch [N].
            drafts: What the round has drafted for them so far [N, step - 1].

        Returns:
            float32 [N, V]. A row that would be left without a token comes back as it was: the
            target's row there ends the request if the walk reaches it.
        """
        rows = self._rows
        places = np.flatnonzero(rows["is_processed"][at])
        if not len(places):
            return logits
        chosen = at[places]
        paths = DraftedPaths.of_round(
            rows.token_ids[chosen],
            rows["prompt_length"][chosen],
            rows["num_decided"][chosen],
            drafts[places],
            np.full(len(chosen), drafts.shape[1]),
            vocab_size=logits.shape[-1],
            index=places,
        )
        ends = paths.num_decided + drafts.shape[1]
        is_read = np.ones((len(chosen), 1), np.bool_)
        paths = replace(paths, num_decided=ends, is_read=is_read, tree=chain_of(0))
        processed = logits.to(torch.float32, copy=True)
        asked = processed[:, None], paths, plans_of(rows, chosen), grammars_of(rows, chosen)
        if resolve_impl(self._impl, logits.device) == "triton":
            process_on_device(*asked, tallies_of(rows, chosen), stand_in=logits[:, None])
            return processed
        for c in process(*asked):
            processed[places[c]] = logits[places[c]]
        return processed
