"""From a `SpeculativeConfig` to the speculator that it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairdraft import pocket
from fairdraft.engine.config import SpeculativeConfig
from fairdraft.models import CausalLM, load_model
from fairdraft.speculators import (
    Dflash2Speculator,
    DflashSpeculator,
    DraftModelSpeculator,
    DraftModelTreeSpeculator,
    DsparkSpeculator,
    Eagle3Speculator,
    Eagle3TreeSpeculator,
    HeadSpeculator,
    NgramSpeculator,
    PastOutputs,
    PredictionSpeculator,
    SharedKvSpeculator,
    Speculator,
    SuffixSpeculator,
    SuffixTreeSpeculator,
    match_vocabularies,
    new_custom,
    new_mtp,
)
from fairdraft.speculators.heads import (
    CachedBlocks,
    CachedHead,
    Dflash2Head,
    DsparkHead,
    HeadConfig,
    RecallingHead,
    load_dflash,
    load_head,
    load_mtp,
    load_shared_kv,
)


def new_speculator(
    config: SpeculativeConfig, target: CausalLM, dtype: str | None, device: str
) -> Speculator:
    """Makes the speculator of a configuration.

    Args:
        config: What is asked for.
        target: What it drafts for.
        dtype: Of a draft model, as `load_model`.
        device: Of a draft model.

    Raises:
        ValueError: If its model cannot be used with this target.
    """
    num_drafts = config.num_speculative_tokens
    is_greedy = config.draft_sample_method == "greedy"
    # of every speculator that draws from laws
    options: dict[str, Any] = {
        "greedy": is_greedy,
        "confidence_threshold": config.confidence_threshold,
    }
    if config.method == "ngram":
        assert config.prompt_lookup_min is not None and config.prompt_lookup_max is not None
        return NgramSpeculator(num_drafts, config.prompt_lookup_min, config.prompt_lookup_max)
    if config.method == "suffix":
        return _new_suffix(config)
    if config.method == "prediction":
        return PredictionSpeculator(num_drafts)
    if config.method == "custom":
        return new_custom(config.model, num_drafts, target, **options)
    if config.method == "eagle3":
        head = load_head(head_folder(config.model), target)
        cached = CachedHead(head, _num_slots(head.config, target))
        if config.tree is not None:
            return Eagle3TreeSpeculator(cached, config.tree, target.vocab_size, greedy=is_greedy)
        return Eagle3Speculator(cached, num_drafts, target.vocab_size, **options)
    if config.method == "mtp":
        head = load_mtp(head_folder(config.model), target)
        cached = CachedHead(head, _num_slots(head.config, target))
        return new_mtp(cached, num_drafts, target.vocab_size, **options)
    if config.method == "shared_kv_mtp":
        head = load_shared_kv(head_folder(config.model), target)
        recalling = RecallingHead(head, target.max_model_len)
        return SharedKvSpeculator(recalling, num_drafts, target.vocab_size, **options)
    if config.method in ("dflash", "dflash2", "dspark"):
        return _new_blocks(config, target, options)
    draft = load_once(config.model, config.tokenizer, dtype, device, "draft")
    vocabulary = match_vocabularies(
        target.vocab_size,
        draft.vocab_size,
        target.tokenizer,
        draft.tokenizer,
        check=config.check_vocabulary,
    )
    if config.tree is not None:
        return DraftModelTreeSpeculator(draft, config.tree, vocabulary, greedy=is_greedy)
    return DraftModelSpeculator(draft, num_drafts, vocabulary, **options)


def num_parameters(speculator: Speculator | None) -> int:
    """Parameters of what drafts, what it shares with the target apart; 0 if it has none."""
    if isinstance(speculator, DraftModelSpeculator):
        return speculator.model.num_parameters
    return int(getattr(speculator, "num_parameters", 0))


def describe_speculator(
    config: SpeculativeConfig | None, speculator: Speculator | None, max_model_len: int
) -> str:
    """Says in a line what drafts, and where it will not."""
    if speculator is None or config is None:
        return "none, plain decoding"
    text = f"{config.method}, {config.num_speculative_tokens} tokens a round"
    if config.tree is not None:
        text = f"{config.method}, trees of {config.tree.num_nodes} tokens, {config.tree.depth} deep"
    if config.confidence_threshold:
        text += f", while a law's best token has {config.confidence_threshold:g}"
    if config.adaptive:
        text += (
            " at most, fewer by the request's own rounds, a draft at "
            f"{config.adaptive_cost_ratio:g} of a round without"
        )
    if isinstance(speculator, DraftModelSpeculator):
        draft = speculator.model
        how = ", compiled for one row, on one thread" if draft.places.num_bare_tokens else ""
        return (
            f"{text}, {draft.name}, {draft.num_parameters:,} parameters{how}, "
            f"{config.draft_sample_method} drafts, {speculator.vocabulary.describe()}"
        )
    if isinstance(speculator, HeadSpeculator):
        return f"{text}, {config.draft_sample_method} drafts, {speculator.describe(max_model_len)}"
    if config.method == "suffix" and config.suffix_decoding_max_cached_requests:
        return (
            f"{text}, also from the last {config.suffix_decoding_max_cached_requests} outputs: a "
            "key alone does not repeat a text"
        )
    return text


def _new_suffix(config: SpeculativeConfig) -> SuffixSpeculator:
    depth, num_outputs = (
        config.suffix_decoding_max_tree_depth,
        config.suffix_decoding_max_cached_requests,
    )
    factor, prob = config.suffix_decoding_max_spec_factor, config.suffix_decoding_min_token_prob
    assert depth is not None and factor is not None and prob is not None
    options: dict[str, Any] = {
        "max_depth": depth,
        "max_spec_factor": factor,
        "min_token_prob": prob,
        "past": PastOutputs(num_outputs) if num_outputs else None,
    }
    if config.tree is not None:
        return SuffixTreeSpeculator(config.tree, **options)
    return SuffixSpeculator(config.num_speculative_tokens, **options)


def head_folder(model: str | Path) -> Path:
    """The folder of a head: an embedded one by name, or as given.

    Raises:
        ValueError: If there is no such folder.
    """
    if model in pocket.HEAD_NAMES:
        method = pocket.HEAD_NAMES[str(model)]
        folder = pocket.path(method)
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"{model!r} is not part of this installation; train a head (fairdraft train "
                f"{method} pocket --data self --output FOLDER) and pass its folder"
            )
        return folder
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"unknown head {str(model)!r}: no such folder, and not one of "
            f"{', '.join(pocket.installed_heads())}. Nothing is downloaded; pass a folder"
        )
    return folder


def load_once(model: Any, tokenizer: Any, dtype: str | None, device: str, role: str) -> CausalLM:
    """Loads a model, or takes one that is loaded.

    Raises:
        ValueError: As `load_model`, and if a tokenizer is given for a loaded one.
    """
    if isinstance(model, CausalLM):
        if tokenizer is not None:
            raise ValueError(f"{role}: tokenizer= goes to load_model when a CausalLM is passed")
        return model
    return load_model(model, tokenizer, dtype=dtype, device=device, role=role)


def _new_blocks(
    config: SpeculativeConfig, target: CausalLM, options: dict[str, Any]
) -> DflashSpeculator:
    head = load_dflash(head_folder(config.model), target)
    blocks = CachedBlocks(head, _num_slots(head.config, target))
    is_dspark, is_dflash2 = isinstance(head, DsparkHead), isinstance(head, Dflash2Head)
    if config.method != ("dspark" if is_dspark else "dflash2" if is_dflash2 else "dflash"):
        raise ValueError(
            f"{str(config.model)!r} holds {head.kind}, and method {config.method!r} was asked for; "
            "leave 'method' out, and it is read from the head"
        )
    arguments = (blocks, config.num_speculative_tokens, target.vocab_size)
    if is_dspark:
        return DsparkSpeculator(*arguments, draft_top_k=config.dspark_draft_topk, **options)
    new = Dflash2Speculator if is_dflash2 else DflashSpeculator
    return new(*arguments, **options)


def _num_slots(config: HeadConfig, target: CausalLM) -> int:
    return min(config.max_position_embeddings, target.max_model_len)
