"""The `speculative_config` dictionary, with vLLM's keys."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from fairdraft import pocket
from fairdraft.engine.checks import check_integer, check_number
from fairdraft.engine.round_rule import RoundRule, check_rule, rule_of, with_method_of_rule
from fairdraft.speculators import TokenTree, read_token_tree
from fairdraft.speculators.heads import kind_of_head

#: methods whose `model` is a head
HEADS = pocket.HEADS
METHODS = ("draft_model", "ngram", "suffix", "prediction", *HEADS, "custom")
DRAFT_SAMPLE_METHODS = ("probabilistic", "greedy")
#: methods that draft from text alone
WITHOUT_MODEL = ("ngram", "suffix", "prediction")
#: K of a chain, if nothing is said
NUM_DRAFTS = 4
#: keys that belong to one method, or to some
_SAMPLES = ("draft_model", *HEADS, "custom")
_OWNERS = {
    "prompt_lookup_min": ("ngram",),
    "prompt_lookup_max": ("ngram",),
    "suffix_decoding_max_tree_depth": ("suffix",),
    "suffix_decoding_max_cached_requests": ("suffix",),
    "suffix_decoding_max_spec_factor": ("suffix",),
    "suffix_decoding_min_token_prob": ("suffix",),
    "confidence_threshold": _SAMPLES,
    "speculative_token_tree": ("draft_model", "eagle3", "suffix"),
    "dspark_draft_topk": ("dspark",),
}


@dataclass(frozen=True)
class SpeculativeConfig:
    """Which speculator proposes, and how many tokens a round.

    Attributes:
        method: "draft_model", "ngram", "suffix", "prediction", one of HEADS, or "custom"; None
            reads it from `model`.
        model: Of the draft model: a path, a name, or a loaded `PreTrainedModel`. Of a head: its
            folder, or "pocket-mtp" and the like. Of a custom speculator: see
            `speculators.new_custom`.
        tokenizer: Of a loaded draft model, so that its vocabulary can be compared; optional.
        num_speculative_tokens: Most drafts a round, K, at least 1. None is settled at once: the
            depth of the `speculative_token_tree` where there is one, else 4.
        draft_sample_method: "probabilistic" samples drafts at the request's temperature and
            filters; "greedy" proposes the draft's best token, a point mass that uses no noise.
        rejection_sample_method: "standard" tests draft by draft (rule `token`); "block" tests whole
            prefixes, and accepts more where several drafts a round are sampled; "common_noise"
            (not in vLLM) drafts with the target's own noise and keeps what equals the target's own
            token: fewer drafts stand, and a seed gives the text of plain decoding. "tree" (not in
            vLLM) tests candidate by candidate, which is what "standard" means where there is a
            `speculative_token_tree`. "typical", "threshold" and "synthetic" are lossy: the text
            does not follow the target, and every output says so. The key `rule` may be given in
            its place, with the rule's own name.
        speculative_token_tree: Drafts a tree a round, several candidates for a token: children of
            each node by depth, such as [3, 2, 1], or the paths of all nodes as in vLLM, such as
            [(0,), (1,), (0, 0)]. Its depth is K.
        allow_lossy: Must be True for a lossy rule. Not in vLLM.
        posterior_threshold, posterior_alpha: Of "typical", as in Medusa: .09 and .3 unless given.
        accept_threshold_single, accept_threshold_acc: Of "threshold", as in SGLang: 1, which is
            off, unless given.
        synthetic_acceptance_rates: Of "synthetic", one a draft: the chance that it and all before
            it stand.
        synthetic_acceptance_length: Of "synthetic", in place of rates: mean tokens a round.
        prompt_lookup_min: Shortest suffix that prompt lookup searches for, in tokens.
        prompt_lookup_max: Longest such suffix.
        suffix_decoding_max_tree_depth: Longest end of the text that is searched for, in tokens.
        suffix_decoding_max_cached_requests: Outputs of ended requests to search as well, the latest
            ones. 0, unlike in vLLM: with more, drafts depend on what ended before, so that a key
            alone does not repeat a text any more (its law stays), and users share text.
        suffix_decoding_max_spec_factor: Drafts for each token that matched.
        suffix_decoding_min_token_prob: Least frequency of a branch that is followed.
        confidence_threshold: Of speculators that give laws: draft i is present only while the
            largest probability of its law is at least this, or of "dspark" the head's guess of its
            acceptance; 0 is off. Decided before the draft is drawn, so the output's law is the
            same. Not in vLLM.
        dspark_draft_topk: Ids that stay in each law of a DSpark head, the best before its bias;
            None for all.
        adaptive: Whether K is a maximum, and a round's K follows from how many drafts stood in the
            request's own earlier rounds; see `engine.adaptive`. The output's law is the same, and a
            key repeats its text. Not in vLLM.
        adaptive_cost_ratio: What a draft costs there, drafting it and its row of the target, over a
            round without drafts. None measures it once at load; the settled configuration holds the
            figure, so that it can be pinned: K depends on it.
        check_vocabulary: False skips the comparison of the two tokenizers. The output stays
            exact; drafts of a foreign vocabulary are only rarely accepted.
        process_draft_logits: Applies a request's processors (penalties, bias, masks) to the draft's
            logits as well, as filters always are: more drafts stand, at the cost of processing
            each. The output's law is the same. Not in vLLM.
    """

    method: str | None = None
    model: Any = None
    tokenizer: Any = None
    # an int once settled, so that no reader has to ask
    num_speculative_tokens: int = cast(int, None)
    draft_sample_method: str = "probabilistic"
    rejection_sample_method: str = "standard"
    allow_lossy: bool = False
    posterior_threshold: float | None = None
    posterior_alpha: float | None = None
    accept_threshold_single: float | None = None
    accept_threshold_acc: float | None = None
    synthetic_acceptance_rates: Sequence[float] | None = None
    synthetic_acceptance_length: float | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    suffix_decoding_max_tree_depth: int | None = None
    suffix_decoding_max_cached_requests: int | None = None
    suffix_decoding_max_spec_factor: float | None = None
    suffix_decoding_min_token_prob: float | None = None
    confidence_threshold: float = 0.0
    adaptive: bool = False
    adaptive_cost_ratio: float | None = None
    dspark_draft_topk: int | None = None
    check_vocabulary: bool = True
    process_draft_logits: bool = False
    speculative_token_tree: Any = None

    def __post_init__(self) -> None:
        if self.method is None:
            object.__setattr__(self, "method", infer_method(self.model))
        if not isinstance(self.method, str) or self.method not in METHODS:
            raise ValueError(
                f"speculative_config: method={self.method!r} is not known; use one of "
                f"{', '.join(METHODS)}, or 'auto'; for no speculation leave speculative_config out"
            )
        self._settle_num_drafts()
        if self.draft_sample_method not in DRAFT_SAMPLE_METHODS:
            raise ValueError(
                f"draft_sample_method={self.draft_sample_method!r}: must be one of "
                f"{', '.join(DRAFT_SAMPLE_METHODS)}"
            )
        check_rule(self)
        self._refuse_foreign_keys()
        self._check_confidence()
        self._check_adaptive()
        self._settle_tree()
        if self.method == "ngram":
            self._settle_lookup()
        elif self.method == "suffix":
            self._settle_suffix()
        if self.method not in WITHOUT_MODEL:
            self._check_model()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> SpeculativeConfig:
        """Reads vLLM's dictionary; a key it does not know is refused by name.

        Raises:
            ValueError: If a key is unknown or a value is out of range.
        """
        if not isinstance(config, Mapping):
            raise ValueError(
                f"speculative_config must be a dict such as {{'method': 'ngram'}}, not {config!r}"
            )
        config = with_method_of_rule(config)
        known = [field.name for field in fields(cls)]
        for key in config:
            if key in known:
                continue
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
            raise ValueError(f"speculative_config: unknown key {key!r}; {hint}")
        return cls(**config)

    @property
    def rule(self) -> RoundRule:
        """The verification rule."""
        return rule_of(self)

    @property
    def tree(self) -> TokenTree | None:
        """The tree that is drafted, or None for chains."""
        given = self.speculative_token_tree
        return None if given is None else read_token_tree(given)

    def _settle_num_drafts(self) -> None:
        asked, tree = self.num_speculative_tokens, self.tree
        if asked is None:
            asked = NUM_DRAFTS if tree is None else tree.depth
        asked = check_integer("num_speculative_tokens", asked)
        if not 1 <= asked < 1 << 16:
            raise ValueError(
                f"num_speculative_tokens={asked!r}: must be from 1 to 65535; for no speculation "
                "leave speculative_config out"
            )
        if tree is not None and asked != tree.depth:
            raise ValueError(
                f"num_speculative_tokens={asked} and a speculative_token_tree of depth "
                f"{tree.depth}: the tree says it; leave num_speculative_tokens out"
            )
        object.__setattr__(self, "num_speculative_tokens", asked)

    def _settle_tree(self) -> None:
        tree, name = self.tree, "speculative_token_tree"
        if tree is None:
            if self.rule == "tree":
                raise ValueError(f"rejection_sample_method='tree' needs {name}, such as [3, 2, 1]")
            return
        if self.rule not in ("token", "tree"):
            raise ValueError(
                f"{name} and rejection_sample_method={self.rejection_sample_method!r}: a tree is "
                "verified by 'tree'; leave one out"
            )
        for key in ("confidence_threshold", "process_draft_logits", "adaptive"):
            if getattr(self, key):
                raise ValueError(f"{key} is not built for {name}; leave one of them out")
        object.__setattr__(self, "rejection_sample_method", "tree")

    def _settle_lookup(self) -> None:
        longest, shortest = self.prompt_lookup_max, self.prompt_lookup_min
        if longest is None:
            longest = max(5, shortest or 0)
        if shortest is None:
            shortest = min(2, longest)
        check_integer("prompt_lookup_min", shortest)
        check_integer("prompt_lookup_max", longest)
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"prompt_lookup_min={shortest}, prompt_lookup_max={longest}: must satisfy "
                "1 <= min <= max"
            )
        object.__setattr__(self, "prompt_lookup_min", shortest)
        object.__setattr__(self, "prompt_lookup_max", longest)

    def _settle_suffix(self) -> None:
        defaults = {"max_tree_depth": 24, "max_cached_requests": 0}
        defaults |= {"max_spec_factor": 1.0, "min_token_prob": 0.1}
        for short, default in defaults.items():
            name = f"suffix_decoding_{short}"
            value = getattr(self, name)
            value = default if value is None else value
            if isinstance(default, int):
                least = min(default, 1)
                if check_integer(name, value) < least:
                    raise ValueError(f"{name}={value!r}: must be at least {least}")
            elif not 0.0 <= check_number(name, value) < math.inf:
                raise ValueError(f"{name}={value!r}: must be a finite number, at least 0")
            object.__setattr__(self, name, value)

    def _check_confidence(self) -> None:
        value = check_number("confidence_threshold", self.confidence_threshold)
        if not 0.0 <= value <= 1.0:
            raise ValueError(
                f"confidence_threshold={self.confidence_threshold!r}: must be from 0 (off) to 1"
            )
        most = self.dspark_draft_topk
        if most is not None and check_integer("dspark_draft_topk", most) < 1:
            raise ValueError(
                f"dspark_draft_topk={most!r}: must be at least 1; leave it out for all"
            )

    def _check_adaptive(self) -> None:
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive={self.adaptive!r}: must be True or False")
        ratio = self.adaptive_cost_ratio
        if ratio is None:
            return
        if not self.adaptive:
            raise ValueError(f"adaptive_cost_ratio={ratio!r} needs adaptive=True; leave it out")
        if not 0.0 < check_number("adaptive_cost_ratio", ratio) < math.inf:
            raise ValueError(
                f"adaptive_cost_ratio={ratio!r}: must be above 0, such as 0.2 where five drafts "
                "cost as much as a round without; leave it out to have it measured"
            )

    def _refuse_foreign_keys(self) -> None:
        """A key that another method reads is refused, never ignored."""
        for key, owners in _OWNERS.items():
            value = getattr(self, key)
            if value != getattr(type(self), key) and self.method not in owners:
                raise ValueError(
                    f"speculative_config: {key}={value!r} belongs to method "
                    f"{' or '.join(map(repr, owners))}, not to {self.method!r}"
                )
        # vLLM writes the method as the model, too
        if self.method in WITHOUT_MODEL and self.model not in (None, self.method):
            raise ValueError(
                f"speculative_config: method {self.method!r} takes no 'model' ({self.model!r}); "
                "leave it out"
            )

    def _check_model(self) -> None:
        takes_head = self.method in HEADS
        if self.model is None:
            needed = "a path, a name or a loaded model"
            if takes_head:
                needed = f"the folder of a head ('pocket-{self.method}' is that of 'pocket')"
            if self.method == "custom":
                needed = "a function, an object, 'module:attribute' or the name of an entry point"
            raise ValueError(
                f"speculative_config: method {self.method!r} needs 'model', {needed}; for drafts "
                "without a model use method 'ngram'"
            )
        if takes_head and not isinstance(self.model, str | Path):
            raise ValueError(
                f"speculative_config: method {self.method!r} takes the folder of a head, not a "
                f"{type(self.model).__name__}"
            )
        if self.method != "draft_model" and self.tokenizer is not None:
            raise ValueError(
                "speculative_config: 'tokenizer' belongs to method 'draft_model'; any other "
                "speculator speaks its target's ids"
            )


def infer_method(model: Any) -> str:
    """The method that a model stands for, by its name or by what its configuration holds.

    Args:
        model: As `SpeculativeConfig.model`.
    """
    if not isinstance(model, str | Path):
        return "draft_model"
    if str(model) == "ngram":
        return "ngram"
    if str(model) in pocket.HEAD_NAMES:
        return pocket.HEAD_NAMES[str(model)]
    return kind_of_head(Path(model).expanduser()) or "draft_model"
