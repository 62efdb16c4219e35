"""Whether a draft speaks the target's vocabulary, and how its head is mapped onto it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class VocabularyMap:
    """Maps draft logits onto the target's ids; both vocabularies agree where they overlap.

    Attributes:
        target_size: Ids of the target.
        draft_size: Ids of the draft.
        unknown_id: What the draft reads in place of an id that it lacks.
    """

    target_size: int
    draft_size: int
    unknown_id: int = 0

    def known(self, token_ids: np.ndarray) -> np.ndarray:
        """Replaces ids that the draft lacks by `unknown_id`, so that it can read any text.

        A function of the decided tokens: q stays the exact law of what is drafted.
        """
        if self.draft_size >= self.target_size:
            return token_ids
        return np.where(token_ids < self.draft_size, token_ids, self.unknown_id)

    def known_on_device(self, token_ids: Tensor) -> Tensor:
        """`known` for ids on a device."""
        if self.draft_size >= self.target_size:
            return token_ids
        return token_ids.where(token_ids < self.draft_size, self.unknown_id)

    def fit(self, logits: Tensor) -> Tensor:
        """Returns draft logits over the target's ids [N, target_size].

        Ids that the draft lacks get -inf, so q is 0 there and the target's mass is reached by
        rejection alone. Ids that the target lacks are dropped before anything is sampled.
        """
        width = min(self.draft_size, self.target_size)
        if logits.shape[-1] != width:
            logits = logits[..., :width]
        if width < self.target_size:
            missing = logits.new_full((*logits.shape[:-1], self.target_size - width), -torch.inf)
            logits = torch.cat([logits, missing], dim=-1)
        return logits.contiguous()

    def describe(self) -> str:
        """One line on what the map does."""
        if self.draft_size == self.target_size:
            return f"same {self.target_size} ids"
        if self.draft_size < self.target_size:
            return f"draft lacks ids {self.draft_size} to {self.target_size - 1}; never drafted"
        return f"draft ids {self.target_size} to {self.draft_size - 1} are dropped"


def match_vocabularies(
    target_size: int,
    draft_size: int,
    target_tokenizer: Any = None,
    draft_tokenizer: Any = None,
    *,
    check: bool = True,
) -> VocabularyMap:
    """Maps the draft's ids onto the target's, or refuses a draft of another tokenizer.

    The token of every id that both know must be the same. Without both tokenizers only the sizes
    are known, and the ids are taken to agree.

    Args:
        target_size: Ids of the target.
        draft_size: Ids of the draft.
        target_tokenizer: The target's tokenizer, or None.
        draft_tokenizer: The draft's tokenizer, or None.
        check: False skips the comparison.

    Raises:
        ValueError: If an id stands for two tokens; the message names the first one.
    """
    if check and target_tokenizer is not None and draft_tokenizer is not None:
        _refuse_differences(_tokens(target_tokenizer), _tokens(draft_tokenizer))
    unknown_id = getattr(draft_tokenizer, "unk_token_id", None)
    if unknown_id is None or not 0 <= unknown_id < draft_size:
        unknown_id = 0
    return VocabularyMap(target_size, draft_size, unknown_id)


def _tokens(tokenizer: Any) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}


def _refuse_differences(target: dict[int, str], draft: dict[int, str]) -> None:
    shared = target.keys() & draft.keys()
    different = sorted(i for i in shared if target[i] != draft[i])
    if not different:
        return
    first = different[0]
    raise ValueError(
        f"draft and target have different vocabularies: id {first} is {target[first]!r} in the "
        f"target and {draft[first]!r} in the draft ({len(different)} of {len(shared)} shared ids "
        "differ); use a draft with the target's tokenizer, method 'ngram', or "
        "'check_vocabulary': False to try it anyway"
    )
