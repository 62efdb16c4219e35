"""The engine: batched exact generation from one target, with or without a speculator."""

from fairdraft.engine.config import SpeculativeConfig
from fairdraft.engine.core import Engine
from fairdraft.engine.llm import LLM
from fairdraft.engine.logprobs import Logprob
from fairdraft.engine.observation import Observation, Observer
from fairdraft.engine.output import (
    CompletionOutput,
    GenerationInterrupted,
    RequestMetrics,
    RequestOutput,
)
from fairdraft.engine.params import SamplingParams
from fairdraft.engine.processing.custom import LogitsProcessor
from fairdraft.engine.processing.grammar import StructuredOutputsParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "Engine",
    "GenerationInterrupted",
    "LogitsProcessor",
    "Logprob",
    "Observation",
    "Observer",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
    "StructuredOutputsParams",
]
