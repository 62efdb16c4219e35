"""Speculators: what proposes tokens for the target to verify. None of them touches noise."""

from fairdraft.speculators.draft_model import DraftModelSpeculator
from fairdraft.speculators.eagle3 import Eagle3Speculator
from fairdraft.speculators.features import Features
from fairdraft.speculators.ngram import NgramSpeculator, lookup
from fairdraft.speculators.proposal import DraftState, FeatureReader, Proposal, Speculator
from fairdraft.speculators.sampler import Drawn, SharedSampler
from fairdraft.speculators.vocabulary import VocabularyMap, match_vocabularies

__all__ = [
    "DraftModelSpeculator",
    "DraftState",
    "Drawn",
    "Eagle3Speculator",
    "FeatureReader",
    "Features",
    "NgramSpeculator",
    "Proposal",
    "SharedSampler",
    "Speculator",
    "VocabularyMap",
    "lookup",
    "match_vocabularies",
]
