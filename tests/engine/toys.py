"""Toy models whose right answer is exact: the next token's logits are a row of a table.

Axes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from fairdraft import LLM

P4 = [0.4, 0.3, 0.2, 0.1]
Q4 = [0.1, 0.2, 0.3, 0.4]


class TableConfig(PretrainedConfig):
    model_type = "fairdraft_table"


class TableLM(PreTrainedModel):
    """Next-token logits [V, V] by the last token; keeps a value per token in the cache."""

    config_class = TableConfig
    _supports_sdpa = True

    def __init__(self, config: TableConfig, table: Tensor) -> None:
        super().__init__(config)
        self.table = nn.Embedding.from_pretrained(table.float(), freeze=True)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        pass

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def get_output_embeddings(self) -> None:
        return None

    @classmethod
    def can_generate(cls) -> bool:
        return True

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        if past_key_values is not None:
            states = input_ids[:, None, :, None].float()
            past_key_values.update(states, states, 0)
        logits: Any = self.table(input_ids)
        return CausalLMOutputWithPast(logits=logits)


def table_model(
    logits: Any, *, max_model_len: int = 4096, eos_token_id: int | list[int] | None = None
) -> TableLM:
    """A table model from logits [V, V], or from one row [V] for every last token."""
    table = torch.as_tensor(np.asarray(logits, np.float32))
    if table.dim() == 1:
        table = table.expand(len(table), -1).clone()
    shape: dict[str, Any] = {
        "vocab_size": table.shape[1],
        "hidden_size": 1,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": max_model_len,
        "eos_token_id": eos_token_id,
    }
    return TableLM(TableConfig(**shape), table).eval()


def from_probs(probs: Any, **options: Any) -> TableLM:
    """A table model from probabilities."""
    with np.errstate(divide="ignore"):
        return table_model(np.log(np.asarray(probs, np.float64)), **options)


def chain_table(order: list[int], vocab_size: int, gap: float = 20.0) -> np.ndarray:
    """Logits [V, V] of a model that goes through `order`, each token after the one before."""
    table = np.zeros((vocab_size, vocab_size), np.float32)
    for previous, token in zip(order, order[1:], strict=False):
        table[previous, token] = gap
    return table


def tiny_llama(seed: int, *, layers: int = 2, vocab_size: int = 97, **options: Any) -> Any:
    """A random Llama that answers in about a millisecond."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=options.pop("max_model_len", 128),
        initializer_range=0.2,
        eos_token_id=options.pop("eos_token_id", None),
        bos_token_id=None,
        pad_token_id=None,
        **options,
    )
    return LlamaForCausalLM(config).eval()


def noisy_copy(seed: int, scale: float) -> Any:
    """`tiny_llama(0)` with noise on its weights: with .02 about half of its drafts stand."""
    draft = tiny_llama(0)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += scale * torch.randn_like(weight)
    return draft


def ids(outputs: list[Any]) -> list[list[int]]:
    """Token ids of each request's first sample."""
    return [output.outputs[0].token_ids for output in outputs]


def speculating(target: Any, draft: Any, num_speculative_tokens: int = 4, **options: Any) -> LLM:
    """An LLM with a draft model."""
    keys = ("draft_sample_method", "rejection_sample_method", "tokenizer", "check_vocabulary")
    keys += ("process_draft_logits", "confidence_threshold")
    config = {key: options.pop(key) for key in keys if key in options}
    config |= {"model": draft, "num_speculative_tokens": num_speculative_tokens}
    return LLM(target, speculative_config=config, **options)


def preempting(llm: LLM, which: Callable[[int, list[str]], list[str]]) -> None:
    """Drops caches before each round from now on.

    Args:
        llm: Whose rounds they are.
        which: The round's number, from 1, and the running requests to those that are dropped.
    """
    step, count = llm.engine.step, 0

    def step_and_preempt() -> Any:
        nonlocal count
        count += 1
        running = [sequence.request.request_id for sequence in llm.engine.rows.sequences]
        for name in which(count, list(dict.fromkeys(running))):
            llm.engine.preempt(name)
        return step()

    llm.engine.step = step_and_preempt


def one_at(*rounds: int) -> Callable[[int, list[str]], list[str]]:
    """Of `preempting`: another running request at each of some rounds."""

    def which(count: int, running: list[str]) -> list[str]:
        return [running[count % len(running)]] if running and count in rounds else []

    return which


def word_tokenizer(words: list[str], *, eos_token: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer whose ids are the given strings, joined without spaces."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, words[0]))
    inner.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos_token)


def letter_tokenizer(letters: str, end: str | None = "</s>") -> PreTrainedTokenizerFast:
    """One id a letter, then the end of sequence."""
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    inner.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: a character of n bytes is n tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    inner.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=inner)
