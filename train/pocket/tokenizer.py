"""Byte-level BPE tokenizer shared by the target and the draft."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

EOS = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE vocabulary of exactly `vocab_size` ids, `EOS` being id 0.

    Raises:
        ValueError: The texts are too few for a vocabulary of this size.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    if core.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the texts gave {core.get_vocab_size()} tokens, {vocab_size} wanted: "
            "give more text or ask for a smaller vocabulary"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=EOS,
        eos_token=EOS,
        pad_token=EOS,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes tokenizer.json (compact) and tokenizer_config.json into `folder`."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), "utf-8")
