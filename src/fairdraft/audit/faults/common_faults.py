"""Faults of rule `common_noise`: a text that is not that of plain decoding.

Some leave the law alone, since the numbers they take instead are as good: no test of a law can see
them, and the text itself names them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fairdraft.audit.faults.fault import Fault, Function, Planting
from fairdraft.noise import Address, Stream, address

__all__ = ["COMMON_FAULTS"]

ADDRESSES = "fairdraft.ops.verify.chain_addresses"


def _named_as_ratio(original: Function, planting: Planting) -> Function:
    """The name of each row's token under the rules that compare laws: RESIDUAL, or BONUS."""
    return lambda at, num_drafts, depth, **options: original(at, num_drafts, depth)


def _renamed(rename: Callable[..., Any]) -> Callable[[Function, Planting], Function]:
    """Rows of rounds with drafts get other addresses; a round without any is plain decoding."""

    def make(original: Function, planting: Planting) -> Function:
        def chain_addresses(
            at: Any, num_drafts: np.ndarray, depth: int, *, is_common: bool = False
        ) -> Any:
            if not (is_common and depth):
                return original(at, num_drafts, depth, is_common=is_common)
            tests, final_at = original(at, num_drafts, depth, is_common=True)
            counter = final_at.counter.reshape(-1, depth + 1, 4).copy()
            rename(counter, at, depth)
            counter[num_drafts == 0] = final_at.counter.reshape(counter.shape)[num_drafts == 0]
            return tests, Address(final_at.key, counter.reshape(-1, 4))

        return chain_addresses

    return make


def _as_drafts(counter: np.ndarray, at: Any, depth: int) -> None:
    key, anchor, sample = (np.asarray(field).reshape(-1, 1) for field in at)
    steps = np.arange(1, depth + 2)
    drawn = address(
        Stream.DRAFT,
        key=key,
        position=anchor + steps - 1,
        anchor=anchor,
        node=np.minimum(steps, depth),
        sample=sample,
    )
    counter[:] = drawn.counter.reshape(counter.shape)


def _one_behind(counter: np.ndarray, at: Any, depth: int) -> None:
    counter[:, 1:, 0] = counter[:, :-1, 0].copy()


def _one_ahead(counter: np.ndarray, at: Any, depth: int) -> None:
    counter[..., 0] += 1


def _drawn_again(original: Function, planting: Planting) -> Function:
    """A pick that is not the draft is thrown away, and another one is drawn in its place."""

    def verify_chain(target_logits: Any, *drafts: Any, **options: Any) -> Any:
        import torch

        from fairdraft import ops

        verdict = original(target_logits, *drafts, **options)
        if options.get("rule") != "common_noise" or drafts[1] is None:
            return verdict
        row = verdict.num_accepted_tokens
        fell = torch.nonzero((row < drafts[1]) & (verdict.num_emitted_tokens > row))[:, 0]
        if not len(fell):
            return verdict
        b = fell.numpy()
        key, anchor, sample, temperature = (
            np.broadcast_to(np.asarray(options[name]), len(row))[b]
            for name in ("key", "anchor", "sample", "temperature")
        )
        node = row[fell].numpy()
        again = address(
            Stream.RESIDUAL,
            key=key,
            position=anchor + node,
            anchor=anchor,
            node=node,
            sample=sample,
        )
        drawn = ops.sample(target_logits[fell, row[fell]], again, temperature=temperature)
        verdict.token_ids[fell, row[fell]] = drawn.token_ids
        return verdict

    return verify_chain


COMMON_FAULTS = (
    Fault(
        "common-drawn-again",
        "under rule common_noise, a pick that is not the draft is replaced by a fresh draw from p",
        "fairdraft.ops.verify_chain",
        _drawn_again,
        "residual",
    ),
    Fault(
        "common-one-behind",
        "under rule common_noise, rows after a draft use the noise of the position before theirs",
        ADDRESSES,
        _renamed(_one_behind),
        "address",
    ),
    Fault(
        "common-one-ahead",
        "under rule common_noise, rounds with drafts use the noise of the position after theirs",
        ADDRESSES,
        _renamed(_one_ahead),
        "address",
    ),
    Fault(
        "common-named-as-ratio",
        "under rule common_noise, the target's token is drawn at its RESIDUAL or BONUS address",
        ADDRESSES,
        _named_as_ratio,
        "address",
    ),
    Fault(
        "common-from-draft",
        "under rule common_noise, the target's token is drawn with noise of the drafts' own",
        ADDRESSES,
        _renamed(_as_drafts),
        "address",
    ),
)
