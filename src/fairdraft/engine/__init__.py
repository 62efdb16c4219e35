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

__all__ = [
    "LLM",
    "CompletionOutput",
    "Engine",
    "GenerationInterrupted",
    "Logprob",
    "Observation",
    "Observer",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
]
