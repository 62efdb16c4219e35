"""Calls `generate` and scores what it returns.

Axes: B texts of a call, N tokens of a text, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.audit.contexts import ContextCheck, compare_contexts
from fairdraft.audit.subjects.hf_rounds import RoundLog, watched
from fairdraft.audit.subjects.rows import RowBook, plain_decided
from fairdraft.stats.tokens import ScoredTokens

if TYPE_CHECKING:
    from fairdraft.audit.subjects.hf import HFSubject

__all__ = ["Generator"]


class Generator:
    """One batch of a subject's texts.

    Args:
        subject: Whose.
    """

    def __init__(self, subject: HFSubject) -> None:
        self._subject = subject
        self._request = subject.request
        self._book = RowBook(subject.max_columns)

    def texts(self, first: int, count: int) -> ScoredTokens | None:
        """Generates and scores texts first .. first + count - 1."""
        subject = self._subject
        # torch's own generator is used, and given back as it was
        with torch.random.fork_rng(devices=_devices(subject.target)), torch.inference_mode():
            if subject.is_assisted:
                for index in range(count):
                    self._assisted(index, first + index)
            else:
                self._plain(first, count)
        prompts = [subject.prompt(text) for text in range(first, first + count)]
        return self._book.tokens(first, prompts, [self._request.num_tokens] * count)

    def check_contexts(self, count: int) -> ContextCheck:
        """Compares the scores of some texts with a forward over each."""
        subject, largest, num_tokens, where = self._subject, 0.0, 0, ""
        limit = None
        with torch.random.fork_rng(devices=_devices(subject.target)), torch.inference_mode():
            for text in range(count):
                prompt = subject.prompt(text)
                if subject.is_assisted:
                    output, _ = self._call_assisted(text, prompt)
                else:
                    output = self._call(torch.tensor([prompt]), text)
                own = torch.stack([step[0] for step in output.logits]).float()
                again = self.forward(output.sequences[0].tolist(), len(prompt))
                check = compare_contexts(own.cpu(), again, subject.target.dtype, f"text {text}")
                num_tokens += len(own)
                limit = check.limit
                if check.largest > largest:
                    largest, where = check.largest, check.where
        assert limit is not None
        return ContextCheck(num_tokens, largest, limit, where)

    def greedy_pairs(self) -> tuple[list[list[int]], list[list[int]], int]:
        """New ids of each prompt with drafts and without, and how many drafts were tested."""
        subject, num_drafts = self._subject, 0
        given, expected = [], []
        with torch.inference_mode():
            for text, prompt in enumerate(subject.prompts):
                output, log = self._call_assisted(text, prompt)
                num_drafts += log.num_drafts
                given.append(output.sequences[0, len(prompt) :].tolist())
                plain = self._call(torch.tensor([prompt]), text)
                expected.append(plain.sequences[0, len(prompt) :].tolist())
        return given, expected, num_drafts

    def _plain(self, first: int, count: int) -> None:
        subject = self._subject
        prompts = [subject.prompt(first + index) for index in range(count)]
        width = max(len(ids) for ids in prompts)
        ids = torch.zeros(count, width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        output = self._call(ids, first, mask)
        new = output.sequences[:, width:].cpu().numpy()
        rows = np.arange(count)
        forwards = self._forwards(prompts, new) if subject.rescore else None
        for step in range(new.shape[1]):
            decided = plain_decided(rows, np.full(count, step), new[:, step])
            target = output.scores[step] if forwards is None else forwards[:, step]
            unfiltered = self._tempered(output.logits[step]) if self._request.has_filter else None
            self._book.note(decided, target, unfiltered=unfiltered)

    def _assisted(self, index: int, text: int) -> None:
        prompt = self._subject.prompt(text)
        output, log = self._call_assisted(text, prompt)
        new = output.sequences[0, len(prompt) :].tolist()
        decided, target, draft = log.decided(index, new)
        if self._subject.rescore:
            target = self._tempered(self.forward([*prompt, *new], len(prompt)))
        unfiltered = None
        if self._request.has_filter:
            unfiltered = self._tempered(torch.stack([step[0] for step in output.logits]))
        self._book.note(decided, target, draft, unfiltered)

    def _call_assisted(self, text: int, prompt: list[int]) -> tuple[Any, RoundLog]:
        subject, log = self._subject, RoundLog()
        options: dict[str, Any] = {}
        if subject.draft is None:
            options["prompt_lookup_num_tokens"] = subject.assistance.prompt_lookup
        else:
            options["assistant_model"] = subject.draft
            # anew for each text: the library's schedule goes on from the text before
            subject.draft.generation_config = self._assistant_config()
        with watched(subject.target, log):
            ids = torch.tensor([prompt])
            return self._call(ids, text, **options), log

    def _call(self, ids: Tensor, text: int, mask: Tensor | None = None, **options: Any) -> Any:
        network = self._subject.target
        torch.manual_seed(self._request.first_seed + text)
        # the checkpoint's own defaults, such as its end of text, must not come in
        network.generation_config = self._config()
        return network.generate(
            ids.to(network.device),
            attention_mask=(torch.ones_like(ids) if mask is None else mask).to(network.device),
            max_new_tokens=self._request.num_tokens,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **options,
        )

    def _config(self) -> Any:
        from transformers import GenerationConfig

        request = self._request
        # no pad id either: an assistant does not attend to it where a text holds it
        if request.temperature == 0:
            return GenerationConfig(do_sample=False)
        return GenerationConfig(
            do_sample=True,
            temperature=float(request.temperature),
            top_k=request.top_k,
            top_p=float(request.top_p),
            min_p=float(request.min_p) if request.min_p else None,
        )

    def _assistant_config(self) -> Any:
        config, given = self._config(), self._subject.assistance
        for name, value in (
            ("num_assistant_tokens", given.num_tokens),
            ("num_assistant_tokens_schedule", given.schedule),
            ("assistant_confidence_threshold", given.confidence_threshold),
        ):
            if value is not None:
                setattr(config, name, value)
        return config

    def _tempered(self, logits: Tensor) -> Tensor:
        temperature = self._request.temperature
        return logits if temperature in (0, 1) else logits.float() / temperature

    def forward(self, token_ids: list[int], prompt_length: int) -> Tensor:
        """The target's logits of each token after the prompt [N, V], of one forward."""
        network = self._subject.target
        ids = torch.tensor([token_ids], device=network.device)
        logits = network(input_ids=ids, use_cache=False).logits[0].float()
        return logits[prompt_length - 1 : -1].cpu()

    def _forwards(self, prompts: list[list[int]], new: np.ndarray) -> Tensor:
        texts = zip(prompts, new.tolist(), strict=True)
        rows = [self.forward([*prompt, *ids], len(prompt)) for prompt, ids in texts]
        return self._tempered(torch.stack(rows))


def _devices(network: Any) -> list[Any]:
    return [network.device] if network.device.type == "cuda" else []
