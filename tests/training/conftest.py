"""A small target and a text of random ids that heads are trained on."""

from __future__ import annotations

import pytest
import torch

from fairdraft.models import CausalLM, load_model
from fairdraft.training import Corpus
from tests.engine.toys import tiny_llama

VOCAB, EOS = 23, 7


@pytest.fixture(scope="package")
def target() -> CausalLM:
    return load_model(tiny_llama(0, vocab_size=VOCAB, eos_token_id=EOS))


@pytest.fixture(scope="package")
def corpus() -> Corpus:
    generator = torch.Generator().manual_seed(0)
    documents = [torch.randint(VOCAB, (20,), generator=generator).tolist() for _ in range(60)]
    return Corpus.from_documents(documents, EOS)
