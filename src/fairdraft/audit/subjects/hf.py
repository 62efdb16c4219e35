"""`transformers` generation as a subject, plain and assisted, scored by the scores of the run.

Axes: B texts of a call, N tokens of a text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fairdraft.audit.contexts import ContextCheck
from fairdraft.audit.prompts import PROMPTS, digest_prompts
from fairdraft.audit.subject import Batch, InvalidSubject, SubjectInfo

__all__ = ["Assistance", "HFRequest", "HFSubject", "load_stock"]

#: texts in a row that share a prompt
TEXTS_PER_PROMPT = 2
#: numbers of scores that one call may keep
SCORE_NUMBERS = 1 << 28
RESCORED_EPS0 = 0.005
#: texts that are forwarded once more, to see whether the run scored them in their context
CHECKED_TEXTS = 4


@dataclass(frozen=True)
class Assistance:
    """How drafts are made.

    Attributes:
        num_tokens: Drafts a round at first; None for the library's own number.
        schedule: "constant", "heuristic" or "heuristic_transient"; None for the library's own.
        confidence_threshold: Drafting ends after a draft below it; None for the library's own.
        prompt_lookup: Drafts a round copied from the text so far, in place of an assistant; 0 for
            none.
    """

    num_tokens: int | None = None
    schedule: str | None = None
    confidence_threshold: float | None = None
    prompt_lookup: int = 0


@dataclass(frozen=True)
class HFRequest:
    """What every text asks for; the end of a text is ignored.

    Attributes:
        temperature: 0 is greedy, for the exact-match mode alone.
        top_k: 0 is off.
        top_p: 1 is off.
        min_p: 0 is off.
        num_tokens: Tokens a text.
        first_seed: torch's seed of text 0; they count up.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    num_tokens: int = 64
    first_seed: int = 0

    @property
    def has_filter(self) -> bool:
        """Whether top-k, top-p or min-p drops anything."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


class HFSubject:
    """Texts of `generate`: in batches if plain, one by one if assisted.

    A token's law is the softmax of the scores that it was sampled or verified by, after all
    processors; a draft's law that of the assistant's scores. With `rescore` the target's law
    comes from one forward over the whole text instead, and plain generation, scored likewise, is
    the A/A run.

    Args:
        target: A network in evaluation mode.
        draft: The assistant, or None.
        prompts: Lists of token ids.
        request: What every text asks for.
        assistance: How drafts are made.
        texts_per_batch: Texts a batch; None for 64 if plain and 16 if assisted.
        rescore: Score by a forward over the text.
        max_columns: Ids kept of each law, the rest cell included.
        names: Of target and draft, for people.

    Raises:
        ValueError: If something cannot be used.
    """

    def __init__(
        self,
        target: Any,
        draft: Any = None,
        *,
        prompts: Sequence[Sequence[int]],
        request: HFRequest | None = None,
        assistance: Assistance | None = None,
        texts_per_batch: int | None = None,
        rescore: bool = False,
        max_columns: int = 256,
        names: tuple[str, str] | None = None,
    ) -> None:
        self.target, self.draft = target, draft
        self.request = request or HFRequest()
        self.assistance = assistance or Assistance()
        if not prompts or not all(len(ids) for ids in prompts):
            raise ValueError("prompts must hold lists of at least one token id; one is empty")
        if self.assistance.prompt_lookup and draft is not None:
            raise ValueError("prompt_lookup and a draft model are both given; leave one out")
        if rescore and self.request.has_filter:
            raise ValueError(
                "rescore forwards the target alone and knows no filters; leave top_k, top_p and "
                "min_p out, or score by the run"
            )
        self.prompts = [list(ids) for ids in prompts]
        self.rescore = rescore
        self.max_columns = max_columns
        self.names = names or tuple(_name_of(network) for network in (target, draft))
        default = 16 if self.is_assisted else self._texts_that_fit()
        self.texts_per_batch = texts_per_batch or default

    @property
    def is_assisted(self) -> bool:
        """Whether drafts are made."""
        return self.draft is not None or self.assistance.prompt_lookup > 0

    @property
    def control(self) -> HFSubject | None:
        """Plain generation, rescored: the A/A run of a rescored subject."""
        if not self.rescore or not self.is_assisted:
            return None
        return HFSubject(
            self.target,
            prompts=self.prompts,
            request=self.request,
            rescore=True,
            max_columns=self.max_columns,
            names=(self.names[0], ""),
        )

    @property
    def info(self) -> SubjectInfo:
        """What is recorded about the subject."""
        import torch
        import transformers

        is_drawn = self.draft is not None
        request = asdict(self.request) | {"temperature": float(self.request.temperature)}
        return SubjectInfo(
            kind="hf",
            name=f"transformers {transformers.__version__} generate, {self._described()}",
            parameters={
                "target": self.names[0],
                "draft": self.names[1] if is_drawn else None,
                "dtype": str(self.target.dtype).removeprefix("torch."),
                **request,
                "assistance": asdict(self.assistance) if self.is_assisted else None,
                "texts_per_batch": self.texts_per_batch,
                "prompts": digest_prompts(self.prompts),
                "transformers": transformers.__version__,
                "torch": torch.__version__,
            },
            scoring="rescored" if self.rescore else "own logits",
            default_eps0=RESCORED_EPS0 if self.rescore else 0.0,
            is_speculative=self.is_assisted,
            # multinomial divides exponentials by probabilities, one number an id
            sampler="gumbel",
            rule="token" if self.is_assisted else None,
        )

    def batches(self, cursor: Any = None) -> Iterator[Batch]:
        """Yields batches for ever; the cursor is the number of texts before."""
        from fairdraft.audit.subjects.hf_generate import Generator

        first = 0 if cursor is None else int(cursor)
        while True:
            generator = Generator(self)
            tokens = generator.texts(first, self.texts_per_batch)
            if tokens is None:
                raise InvalidSubject("generate returned no token")
            first += self.texts_per_batch
            yield Batch(tokens, first)

    def check_contexts(self) -> ContextCheck:
        """Compares the run's scores of some texts with one forward over each whole text."""
        from fairdraft.audit.subjects.hf_generate import Generator

        return Generator(self).check_contexts(CHECKED_TEXTS)

    def prompt(self, text: int) -> list[int]:
        """Ids of a text's prompt."""
        return self.prompts[text // TEXTS_PER_PROMPT % len(self.prompts)]

    def _described(self) -> str:
        if self.draft is not None:
            return f"{self.names[0]} assisted by {self.names[1]}"
        if self.assistance.prompt_lookup:
            return f"{self.names[0]} with prompt lookup, {self.assistance.prompt_lookup} drafts"
        return f"{self.names[0]}, plain"

    def _texts_that_fit(self) -> int:
        vocab_size = self.target.config.get_text_config(decoder=True).vocab_size
        return max(1, min(64, SCORE_NUMBERS // (vocab_size * self.request.num_tokens)))


def load_stock(name: str, *, dtype: str = "float32", role: str = "target") -> tuple[Any, Any]:
    """A checkpoint as `transformers` loads it by default, and its tokenizer or None.

    Args:
        name: A folder, a cached name, "pocket", "pocket-draft" or "smollm2".
        dtype: A floating type by torch's name, or "auto".
        role: For messages.

    Raises:
        ValueError: If it cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from fairdraft.models.loading import named_folder

    kind = getattr(torch, dtype, None)
    if dtype != "auto" and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        raise ValueError(f"dtype = {dtype!r}; pass float32, bfloat16, float16, float64, or auto")
    path = str(named_folder(name) or name)
    try:
        network = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"the {role} model {name!r} cannot be loaded: {first}. Nothing is downloaded; pass a "
            "folder in Hugging Face format, or 'pocket'"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError):
        tokenizer = None
    return network.eval(), tokenizer


def default_prompts(tokenizer: Any, vocab_size: int) -> list[list[int]]:
    """The built-in prompts as ids; single ids for a model without a tokenizer."""
    if tokenizer is None:
        return [[i] for i in range(min(len(PROMPTS), vocab_size))]
    return [tokenizer(text)["input_ids"] for text in PROMPTS]


def _name_of(network: Any) -> str:
    if network is None:
        return ""
    return str(getattr(network, "name_or_path", "") or type(network).__name__)
