"""The decoders that are timed: ours by mode, and `transformers` generate, plain and assisted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from fairdraft import LLM, SamplingParams
from fairdraft.engine import RequestMetrics
from fairdraft.models import CausalLM


class Job(NamedTuple):
    """What every decoder gets: prompts of one length, and how to continue them."""

    prompts: list[list[int]]
    num_new_tokens: int
    temperature: float
    seed: int


class Answer(NamedTuple):
    """New ids of each prompt; metrics where the decoder keeps them."""

    token_ids: list[list[int]]
    metrics: list[RequestMetrics]


Decoder = Callable[[Job], Answer]


def our_llms(target: CausalLM, draft: CausalLM, num_drafts: int) -> dict[str, LLM]:
    """One engine a mode, on the same loaded models; on CUDA also without graphs."""
    configs: dict[str, Any] = {
        "plain": None,
        "draft model": {"model": draft, "num_speculative_tokens": num_drafts},
        "n-gram": {"method": "ngram", "num_speculative_tokens": num_drafts},
    }
    llms = {name: LLM(target, speculative_config=config) for name, config in configs.items()}
    if target.device.type == "cuda":
        for name, config in configs.items():
            llms[f"{name}, eager"] = LLM(target, speculative_config=config, enforce_eager=True)
    return llms


def our_params(job: Job) -> list[SamplingParams]:
    """What an engine is asked for, one for each prompt; the end of a text is ignored."""
    return [
        SamplingParams(
            temperature=job.temperature,
            max_tokens=job.num_new_tokens,
            seed=job.seed + row,
            ignore_eos=True,
        )
        for row in range(len(job.prompts))
    ]


def our_decoder(llm: LLM) -> Decoder:
    """Decodes with an engine; the end of a text is ignored."""

    def decode(job: Job) -> Answer:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in job.prompts], our_params(job))
        metrics = [output.metrics for output in outputs if output.metrics is not None]
        return Answer([output.outputs[0].token_ids for output in outputs], metrics)

    return decode


def stock_network(lm: CausalLM) -> PreTrainedModel:
    """The same checkpoint as `transformers` loads it by default: nothing of ours is in it."""
    path = str(lm.model.name_or_path)
    network = AutoModelForCausalLM.from_pretrained(path, dtype=lm.dtype, local_files_only=True)
    return network.eval().to(lm.device)


def hf_decoder(target: Any, draft: Any = None, constant: int = 0) -> Decoder:
    """Decodes with `transformers` generate; the end of a text is ignored.

    Args:
        target: The network that generates.
        draft: The assistant's network, or None.
        constant: Drafts a round, always; 0 leaves the number to the library's own schedule.
    """

    @torch.inference_mode()
    def decode(job: Job) -> Answer:
        torch.manual_seed(job.seed)
        prompts = torch.tensor(job.prompts, device=target.device)
        options: dict[str, Any] = {}
        if draft is not None:
            options["assistant_model"] = draft
            _settle(draft, job)
            _schedule(draft.generation_config, constant)
        _settle(target, job)
        ids = target.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=job.num_new_tokens,
            **options,
        )
        return Answer(ids[:, prompts.shape[1] :].tolist(), [])

    return decode


def _settle(network: Any, job: Job) -> None:
    """The whole law at the job's temperature, and no end of text."""
    is_sampled = job.temperature > 0
    network.generation_config = GenerationConfig(
        do_sample=is_sampled,
        temperature=job.temperature if is_sampled else None,
        top_k=0 if is_sampled else None,
        top_p=1.0 if is_sampled else None,
        eos_token_id=None,
        pad_token_id=0,
    )


def _schedule(config: GenerationConfig, constant: int) -> None:
    if constant:
        config.num_assistant_tokens = constant
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
