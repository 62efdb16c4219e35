"""Speculators: what proposes tokens for the target to verify. None of them touches noise."""

from fairdraft.speculators.custom import (
    DraftFunction,
    DraftLogits,
    LogitsSpeculator,
    PointSpeculator,
)
from fairdraft.speculators.dflash import DflashSpeculator
from fairdraft.speculators.dflash2 import Dflash2Speculator
from fairdraft.speculators.draft_model import DraftModelSpeculator
from fairdraft.speculators.draft_model_tree import DraftModelTreeSpeculator
from fairdraft.speculators.dspark import DsparkSpeculator
from fairdraft.speculators.eagle3 import Eagle3Speculator
from fairdraft.speculators.eagle3_tree import Eagle3TreeSpeculator
from fairdraft.speculators.features import Features
from fairdraft.speculators.head import HeadSpeculator
from fairdraft.speculators.memory import TargetMemory
from fairdraft.speculators.mtp import MtpModulesSpeculator, MtpSpeculator, new_mtp
from fairdraft.speculators.ngram import NgramSpeculator, lookup
from fairdraft.speculators.on_device import (
    DeviceFeatures,
    DeviceReader,
    DeviceSpeculator,
    DeviceState,
)
from fairdraft.speculators.past_outputs import PastOutputs
from fairdraft.speculators.plugins import new_custom
from fairdraft.speculators.prediction import PredictionSpeculator, count_found
from fairdraft.speculators.proposal import (
    DraftState,
    FeatureReader,
    Guesses,
    Proposal,
    Speculator,
    TreeProposal,
    TreeSpeculator,
)
from fairdraft.speculators.readers import OutputReader, RequestReader
from fairdraft.speculators.sampler import CommonSampler, Drawn, Guessed, SharedSampler
from fairdraft.speculators.shared_kv_mtp import SharedKvSpeculator
from fairdraft.speculators.suffix import SuffixSpeculator
from fairdraft.speculators.suffix_tree import SuffixTreeSpeculator
from fairdraft.speculators.token_tree import TokenTree, read_token_tree
from fairdraft.speculators.vocabulary import VocabularyMap, match_vocabularies

__all__ = [
    "CommonSampler",
    "DeviceFeatures",
    "DeviceReader",
    "DeviceSpeculator",
    "DeviceState",
    "Dflash2Speculator",
    "DflashSpeculator",
    "DraftFunction",
    "DraftLogits",
    "DraftModelSpeculator",
    "DraftModelTreeSpeculator",
    "DraftState",
    "Drawn",
    "DsparkSpeculator",
    "Eagle3Speculator",
    "Eagle3TreeSpeculator",
    "FeatureReader",
    "Features",
    "Guessed",
    "Guesses",
    "HeadSpeculator",
    "LogitsSpeculator",
    "MtpModulesSpeculator",
    "MtpSpeculator",
    "NgramSpeculator",
    "OutputReader",
    "PastOutputs",
    "PointSpeculator",
    "PredictionSpeculator",
    "Proposal",
    "RequestReader",
    "SharedKvSpeculator",
    "SharedSampler",
    "Speculator",
    "SuffixSpeculator",
    "SuffixTreeSpeculator",
    "TargetMemory",
    "TokenTree",
    "TreeProposal",
    "TreeSpeculator",
    "VocabularyMap",
    "count_found",
    "lookup",
    "match_vocabularies",
    "new_custom",
    "new_mtp",
    "read_token_tree",
]
