"""A corpus that the target writes itself: what a head meets in use, without any text given."""

from __future__ import annotations

from collections.abc import Callable

from fairdraft.engine import LLM, SamplingParams
from fairdraft.models import CausalLM
from fairdraft.training.corpus import Corpus


def sample_corpus(
    target: CausalLM,
    num_tokens: int,
    *,
    max_tokens: int = 256,
    seed: int = 0,
    max_num_seqs: int = 64,
    say: Callable[[str], None] = print,
) -> Corpus:
    """Samples texts from the target at temperature 1, each from its begin token alone.

    Args:
        target: The target.
        num_tokens: Ids to sample, at least.
        max_tokens: Of each text.
        seed: Of the draws.
        max_num_seqs: Texts at a time.
        say: Takes lines of progress.

    Raises:
        ValueError: If the target has neither a begin nor an end token.
    """
    if num_tokens < 1:
        raise ValueError(f"num_tokens = {num_tokens}: must be at least 1")
    begin = getattr(target.tokenizer, "bos_token_id", None)
    if begin is None:
        begin = min(target.eos_token_ids, default=None)
    if begin is None:
        raise ValueError(
            f"{target.name!r} has neither a begin nor an end token to start texts from; pass text"
        )
    max_tokens = min(max_tokens, target.max_model_len - 1)
    llm = LLM(target, max_num_seqs=max_num_seqs)
    eos = min(target.eos_token_ids, default=None)
    documents: list[list[int]] = []
    count = 0
    while count < num_tokens:
        params = SamplingParams(seed=seed + len(documents), n=max_num_seqs, max_tokens=max_tokens)
        [output] = llm.generate([[begin]], params)
        if output.error:
            raise ValueError(f"sampling from {target.name!r} failed: {output.error}")
        for sample in output.outputs:
            ids = sample.token_ids
            documents.append(ids[:-1] if ids and ids[-1] in target.eos_token_ids else ids)
            count += len(ids)
        say(f"sampled {count:,} ids of the {num_tokens:,} asked for")
    return Corpus.from_documents(documents, eos)
