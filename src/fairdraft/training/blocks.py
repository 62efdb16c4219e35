"""Losses of blocks of masks that begin at random places of a window, all of them at once.

A block stands behind its anchor as it will while drafting: its queries see the keys and values that
the target's states before the anchor are made into, and all of their own block, but neither the
window's text from the anchor on nor another block (Chen, Liang and Liu 2026, DFlash).

Axes: B windows, W ids of a window, L slots, A blocks, Q queries of a block, T drafts of it, H
width, C draft ids, K candidates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fairdraft.speculators.heads import Dflash2Head, DflashHead, DsparkHead
from fairdraft.training.losses import BatchLosses, Losses, distances, mean_of
from fairdraft.training.settings import Settings


class BlockAttention:
    """Attention of one layer's queries over the context before their anchors and their own block.

    Args:
        key, value: Of the context [B, groups, L, D].
        is_hidden: Slots that a query must not see [B, 1, A Q, L].
        num_blocks: A.
    """

    def __init__(self, key: Tensor, value: Tensor, is_hidden: Tensor, num_blocks: int) -> None:
        self._key, self._value, self._is_hidden = key, value, is_hidden
        self._num_blocks = num_blocks

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Queries [B, heads, A Q, D], keys and values of the blocks [B, groups, A Q, D]."""
        share, size = query.shape[1] // key.shape[1], query.shape[3]
        blocks = (self._num_blocks, query.shape[2] // self._num_blocks)
        first, first_value, key, value = (
            part.repeat_interleave(share, 1) for part in (self._key, self._value, key, value)
        )
        own = query.unflatten(2, blocks) @ key.unflatten(2, blocks).transpose(3, 4)
        context = (query @ first.transpose(2, 3)).float().masked_fill(self._is_hidden, -math.inf)
        scores = torch.cat([context, own.float().flatten(2, 3)], -1) * size**-0.5
        weights = scores.softmax(-1).to(query.dtype)
        length = first.shape[2]
        inside = weights[..., length:].unflatten(2, blocks) @ value.unflatten(2, blocks)
        attended = weights[..., :length] @ first_value + inside.flatten(2, 3)
        return attended.transpose(1, 2)


def random_anchors(
    num_windows: int, length: int, num_blocks: int, generator: torch.Generator
) -> Tensor:
    """Positions 1 to L of the last decided tokens of blocks, all different, int64 [B, A]."""
    noise = torch.rand(num_windows, length, generator=generator, device=generator.device)
    return noise.argsort(1)[:, :num_blocks] + 1


def block_losses(
    head: DflashHead,
    window: Tensor,
    anchors: Tensor,
    states: tuple[Tensor, ...],
    probs: Tensor,
    angles: tuple[Tensor, Tensor],
    *,
    decay: float,
    tv_weight: float,
    counted: Tensor | None = None,
) -> Losses:
    """Losses of the blocks of a batch of windows.

    A DSpark head reads the window's own token before each draft, as after a draft that was
    accepted, and learns to guess sum_x min(p, q) by binary cross-entropy. A DFlash2 head reads it
    too; its q is over the candidates, and the logits that choose them learn by cross-entropy with
    all of p on top.

    Args:
        head: In training mode, sharing the target's matrices.
        window: Ids, int64 [B, W] with W = L + T.
        anchors: Position of each block's last decided token, 1 to L, int64 [B, A].
        states: The target's, at the window's first L positions, one [B, L, H] a feature layer.
        probs: The target's law after each of the positions 1 to W - 1, restricted to the draft
            vocabulary and not renormalized [B, W - 1, C].
        angles: The head's, of the positions 0 to W.
        decay: Weight of draft i is decay^(i - 1).
        tv_weight: Weight of 1 - sum_x min(p, q).
        counted: Which of those laws count, bool [B, W - 1]; None for all.
    """
    hidden = block_outputs(head, window, anchors, states, angles)
    offsets = torch.arange(head.config.num_drafts, device=window.device)
    # the law of draft i is the one after the token before it, and the first law is after slot 1
    place = anchors[..., None] + offsets - 1
    rows = torch.arange(len(window), device=window.device)[:, None, None]
    logits, guessed = head.logits(hidden).float(), None
    if isinstance(head, DsparkHead):
        before = head.before(window[rows, anchors[..., None] + offsets])
        logits = logits + head.bias(before).float()
        if head.confidence_head is not None:
            # what drafts are drawn from does not change for the sake of the guess
            guessed = head.acceptance_logits(hidden.detach(), before.detach())
    p, log_q = probs[rows, place], logits.log_softmax(-1)
    loss = logits.new_zeros(())
    if isinstance(head, Dflash2Head):
        loss = distances(p, log_q)[0]
        before = window[rows, anchors[..., None] + offsets]
        p, log_q = of_candidates(head, hidden, before, logits, p)
    entropy, overlap = distances(p, log_q)
    loss = loss + entropy + tv_weight * (1 - overlap)
    if guessed is not None:
        loss = loss + binary_cross_entropy_with_logits(guessed, overlap.detach(), reduction="none")
    here = None if counted is None else counted[rows, place]
    loss, entropy, overlap = (mean_of(part, here) for part in (loss, entropy, overlap))
    return Losses((decay**offsets * loss).sum(), entropy.detach(), overlap.detach())


def of_candidates(
    head: Dflash2Head, hidden: Tensor, before: Tensor, logits: Tensor, probs: Tensor
) -> tuple[Tensor, Tensor]:
    """p and log q of a DFlash2 head on the candidates of each draft, each [..., K].

    Args:
        head: The head.
        hidden: Outputs at the drafts [..., H].
        before: Target id of the token before each, int64 [...].
        logits: Of the output head, float32 [..., C].
        probs: p over the draft ids [..., C].
    """
    selector = head.candidate_selector
    candidates = logits.detach().topk(head.config.selector_top_k).indices
    # one product over all ids, in place of a lookup for each candidate
    scores = logits + selector.all_edges(selector.project(hidden), before)
    return probs.gather(-1, candidates), scores.gather(-1, candidates).log_softmax(-1)


def block_outputs(
    head: DflashHead,
    window: Tensor,
    anchors: Tensor,
    states: tuple[Tensor, ...],
    angles: tuple[Tensor, Tensor],
) -> Tensor:
    """What the queries that draft give [B, A, T, H]; the arguments are `block_losses`'s."""
    num_windows, num_blocks = anchors.shape
    size, length = head.config.block_size, states[0].shape[1]
    cos, sin = (part[0, 0] for part in angles)
    made = head.context(head.fuse(states), (cos[None, None, :length], sin[None, None, :length]))
    slots = torch.arange(length, device=window.device)
    is_hidden = (slots >= anchors[..., None]).repeat_interleave(size, 1)[:, None]
    positions = (anchors[..., None] + torch.arange(size, device=window.device)).flatten(1)
    embedded = head.embed(window.gather(1, anchors).flatten())
    outputs = head.block(
        embedded.view(num_windows, num_blocks * size, -1),
        (cos[positions][:, None], sin[positions][:, None]),
        lambda layer: BlockAttention(*made[layer], is_hidden, num_blocks),
    )
    outputs = head.drafting(outputs.view(num_windows * num_blocks, size, -1))
    return outputs.view(num_windows, num_blocks, head.config.num_drafts, -1)


class BlockLosses(BatchLosses[DflashHead]):
    """Losses of a head of blocks over batches; arguments as in `BatchLosses`."""

    def __init__(self, head: DflashHead, settings: Settings, *, compiled: bool) -> None:
        super().__init__(head, settings, block_losses, settings.width + 1, compiled=compiled)

    def __call__(
        self,
        window: Tensor,
        states: tuple[Tensor, ...],
        probs: Tensor,
        generator: torch.Generator,
        counted: Tensor | None = None,
    ) -> Losses:
        """As `block_losses`, at anchors drawn from the generator."""
        settings = self._settings
        anchors = random_anchors(len(window), settings.length, settings.num_blocks, generator)
        return self._of(window, anchors, states, probs, counted=counted)
