"""Training of heads: a corpus, the frozen target's states, one loop, and what came out."""

from fairdraft.training.acceptance import Acceptance, measure_acceptance
from fairdraft.training.corpus import Corpus, read_corpus
from fairdraft.training.dflash import train_dflash
from fairdraft.training.dflash2 import train_dflash2
from fairdraft.training.dspark import train_dspark
from fairdraft.training.eagle3 import train_eagle3
from fairdraft.training.head import HeadShape
from fairdraft.training.mtp import train_mtp
from fairdraft.training.selftext import sample_corpus
from fairdraft.training.settings import Settings
from fairdraft.training.shared_kv_mtp import train_shared_kv_mtp

__all__ = [
    "Acceptance",
    "Corpus",
    "HeadShape",
    "Settings",
    "measure_acceptance",
    "read_corpus",
    "sample_corpus",
    "train_dflash",
    "train_dflash2",
    "train_dspark",
    "train_eagle3",
    "train_mtp",
    "train_shared_kv_mtp",
]
