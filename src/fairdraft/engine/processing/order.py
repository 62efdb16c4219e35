"""The order in which a request's processors apply: the one place that says it.

1. `structured_outputs`, `allowed_token_ids`: masks
2. `logit_bias`
3. `min_tokens`: a mask of the ends
4. `repetition_penalty`, then `frequency_penalty` and `presence_penalty`
5. `bad_words`, `bad_words_ids`, `no_repeat_ngram_size`: masks
6. `logits_processors`, in the order they are given
7. temperature, `top_k`, `top_p`, `min_p` (`fairdraft.ops.filter_logits`)

Bias comes before the penalties and these before the temperature, as in vLLM and Hugging Face; a
masked token stays masked whatever follows, so masks may stand anywhere before 6.

Axes: B sequences, C of the paths, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fairdraft.engine.processing.custom import apply_custom
from fairdraft.engine.processing.grammar import GrammarState, apply_grammar
from fairdraft.engine.processing.plan import ProcessingPlan
from fairdraft.ops import processors
from fairdraft.ops.processors import DraftedPaths
from fairdraft.ops.processors.edits import NUM_PROBES

#: by index of the paths, rows that end their request if they are reached, and what to say
Broken = dict[int, dict[int, str]]


def process(
    logits: Tensor,
    paths: DraftedPaths,
    plans: Sequence[ProcessingPlan],
    grammars: Sequence[GrammarState | None],
) -> Broken:
    """Processes the rows of C sequences, in place.

    Args:
        logits: float32 [B, R, V].
        paths: Of C of the B sequences.
        plans: What each of them asks for.
        grammars: Where each is in its grammar; None without one.

    Returns:
        Rows that cannot be sampled, and why: every token is masked there, or a custom processor
        or grammar failed. Rows below them mean nothing.

    Law:
        Row r of sequence c becomes a function of the raw row and of the tokens above it alone.
    """
    broken: Broken = {}
    for c, (plan, grammar) in enumerate(zip(plans, grammars, strict=True)):
        if grammar is not None:
            note(broken, c, apply_grammar(logits, paths, c, grammar))
        if plan.allowed_ids is not None:
            processors.allow_only(logits, int(paths.index[c]), plan.allowed_ids)
    _add_biases(logits, paths, plans)
    least = _field(plans, "min_tokens")
    processors.forbid_early_ends(logits, paths, least, [plan.end_ids for plan in plans])
    processors.apply_penalties(
        logits,
        paths,
        repetition=_field(plans, "repetition_penalty"),
        presence=_field(plans, "presence_penalty"),
        frequency=_field(plans, "frequency_penalty"),
    )
    processors.forbid_bad_words(logits, paths, [plan.bad_words for plan in plans])
    processors.forbid_repeated_ngrams(logits, paths, _field(plans, "no_repeat_ngram_size"))
    for c, plan in enumerate(plans):
        if plan.processors:
            note(broken, c, apply_custom(logits, paths, c, plan.processors))
    _find_dead_ends(logits, paths, plans, broken)
    return broken


def _field(plans: Sequence[ProcessingPlan], name: str) -> np.ndarray:
    return np.array([getattr(plan.params, name) for plan in plans])


def _add_biases(logits: Tensor, paths: DraftedPaths, plans: Sequence[ProcessingPlan]) -> None:
    counts = [len(plan.bias_ids) for plan in plans]
    if any(counts):
        processors.add_bias(
            logits,
            np.repeat(paths.index, counts),
            np.concatenate([plan.bias_ids for plan in plans]),
            np.concatenate([plan.bias for plan in plans]),
        )


def _find_dead_ends(
    logits: Tensor,
    paths: DraftedPaths,
    plans: Sequence[ProcessingPlan],
    broken: Broken,
) -> None:
    """Adds rows without a token left to `broken`.

    A few tokens are looked at first, and nearly always one of them is left: whole rows are read
    only where none is.
    """
    masked = [c for c, plan in enumerate(plans) if plan.mask_names]
    if not masked:
        return
    index = torch.from_numpy(paths.index[masked]).to(logits.device)
    probes = torch.from_numpy(np.stack([probes_of(plans[c], logits.shape[-1]) for c in masked]))
    every_row = torch.arange(logits.shape[1], device=logits.device)[None, :, None]
    probed = logits[index[:, None, None], every_row, probes.to(logits.device)[:, None]]
    is_doubtful = (probed == -torch.inf).all(dim=-1).cpu().numpy() & paths.is_read[masked]
    for place in np.flatnonzero(is_doubtful.any(axis=1)).tolist():
        c = masked[place]
        doubtful = np.flatnonzero(is_doubtful[place])
        rows = logits[int(paths.index[c]), torch.from_numpy(doubtful).to(logits.device)]
        empty = doubtful[(rows == -torch.inf).all(dim=-1).cpu().numpy()].tolist()
        note(broken, c, {row: dead_end(plans[c], paths, c, row) for row in empty})


def dead_end(plan: ProcessingPlan, paths: DraftedPaths, sequence: int, row: int) -> str:
    """What is said of a row without a token left."""
    count = int(paths.num_output[sequence, row])
    names = " and ".join(plan.mask_names)
    return f"no token is left after {count} output tokens; loosen {names}"


def probes_of(plan: ProcessingPlan, vocab_size: int) -> np.ndarray:
    """Tokens that are likely to be left [NUM_PROBES]."""
    allowed = plan.allowed_ids
    if allowed is None:
        return np.linspace(0, vocab_size - 1, NUM_PROBES).astype(np.int64)
    return allowed[np.linspace(0, len(allowed) - 1, NUM_PROBES).astype(np.int64)]


def note(broken: Broken, sequence: int, found: dict[int, str]) -> None:
    """Adds rows that cannot be sampled; what is known of a row already stays."""
    if found:
        broken[sequence] = found | broken.get(sequence, {})
