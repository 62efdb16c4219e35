"""EAGLE-3: a head of one layer that drafts from hidden states of the target.

See `recurrent` for what makes its q exact. Source: Li et al. 2025.
"""

from __future__ import annotations

from fairdraft.speculators.recurrent import RecurrentSpeculator


class Eagle3Speculator(RecurrentSpeculator):
    """Drafts with an EAGLE-3 head."""

    name = "eagle3"
