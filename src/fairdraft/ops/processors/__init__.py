"""Processors of target rows along the drafted path; they use no noise and keep no state.

All of them change logits [B, R, V] in place: row r of sequence b is the law after r drafts of a
chain, or after node r of a tree. A processor reads the decided tokens and the drafts above the row
from `DraftedPaths`, anew in every round, so a rejected draft leaves no trace. They touch the few
entries that they change, on whatever device the logits are, but wait for it. `edit_rows` applies
all of them on a CUDA device without waiting: they are packed by `pack_edits` and run in kernels. In
which order a request's processors apply is written once, in `fairdraft.engine.processing.order`.

Axes: B sequences, K drafts or nodes, R rows (K + 1), V vocabulary.
"""

from fairdraft.ops.processors.bad_words import forbid_bad_words
from fairdraft.ops.processors.bias import add_bias
from fairdraft.ops.processors.edits import Bitmask, Edits, Guard, pack_edits
from fairdraft.ops.processors.masks import allow_only, forbid
from fairdraft.ops.processors.min_tokens import forbid_early_ends
from fairdraft.ops.processors.ngram import forbid_repeated_ngrams
from fairdraft.ops.processors.params import RowParams
from fairdraft.ops.processors.paths import DraftedPaths
from fairdraft.ops.processors.penalties import apply_penalties
from fairdraft.ops.processors.rows import edit_rows, guard_rows
from fairdraft.ops.processors.tally import Tally

__all__ = [
    "Bitmask",
    "DraftedPaths",
    "Edits",
    "Guard",
    "RowParams",
    "Tally",
    "add_bias",
    "allow_only",
    "apply_penalties",
    "edit_rows",
    "forbid",
    "forbid_bad_words",
    "forbid_early_ends",
    "forbid_repeated_ngrams",
    "guard_rows",
    "pack_edits",
]
