"""Training of heads: a corpus, the frozen target's states, one loop, and what came out."""

from fairdraft.training.acceptance import Acceptance, measure_acceptance
from fairdraft.training.corpus import Corpus, read_corpus
from fairdraft.training.head import train_head
from fairdraft.training.kinds import KINDS
from fairdraft.training.selftext import sample_corpus
from fairdraft.training.settings import Settings
from fairdraft.training.shape import HeadShape

__all__ = [
    "KINDS",
    "Acceptance",
    "Corpus",
    "HeadShape",
    "Settings",
    "measure_acceptance",
    "read_corpus",
    "sample_corpus",
    "train_head",
]
