"""What a head is made of, and for which target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import LlamaConfig

#: scalings whose frequencies do not follow the longest text of the batch
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def default_feature_layers(num_layers: int) -> tuple[int, int, int]:
    """The states that EAGLE-3 heads read where nothing is said: an early, a middle, a late one.

    Args:
        num_layers: Layers of the target.

    Returns:
        Indices into transformers' `hidden_states`: 2, half and three before the end as published
        (that is what engines assume of a checkpoint that names none), and for targets of fewer
        than six layers the first, the middle and the last state.
    """
    if num_layers >= 6:
        return 2, num_layers // 2, num_layers - 3
    return 1, max(num_layers // 2, 1), num_layers


@dataclass(frozen=True)
class HeadConfig:
    """Shape of a head and what it expects of its target.

    Attributes:
        hidden_size: Width of the head, H.
        intermediate_size: Width of its MLP.
        num_attention_heads: Query heads.
        num_key_value_heads: Key/value heads.
        head_dim: Size of a head.
        vocab_size: Ids of the target.
        draft_vocab_size: Ids that the head can draft.
        target_hidden_size: Width of the target's states.
        feature_layers: States that are read, as transformers numbers them; one is EAGLE-1's way.
        max_position_embeddings: Positions that the head was made for.
        rms_norm_eps: Of its norms.
        hidden_act: Activation of the MLP.
        rope_parameters: As transformers has them.
        target_layers: Layers of the target, or None if the checkpoint does not say.
        num_trained_steps: Drafts a round that it was trained for, or None if it does not say.
        target_name: The target's name, for messages.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    feature_layers: tuple[int, ...]
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    rope_parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}
    )
    target_layers: int | None = None
    num_trained_steps: int | None = None
    target_name: str | None = None

    def __post_init__(self) -> None:
        for name in (
            *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
            *("head_dim", "vocab_size", "draft_vocab_size", "target_hidden_size"),
            "max_position_embeddings",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"the head has {name} = {value!r}; it must be at least 1")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"the head has {self.num_attention_heads} query heads, which "
                f"{self.num_key_value_heads} key/value heads cannot share"
            )
        if self.head_dim % 2:
            raise ValueError(f"the head has head_dim = {self.head_dim}; rotations need an even one")
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(
                f"the head drafts {self.draft_vocab_size} ids of a vocabulary of {self.vocab_size}"
            )
        if not self.feature_layers or min(self.feature_layers) < 0:
            raise ValueError(
                f"the head reads the states {list(self.feature_layers)}; name at least one, 0 is "
                "the embedding"
            )
        kind = self.rope_parameters.get("rope_type", "default")
        if kind not in ROPE_TYPES:
            raise ValueError(
                f"the head has rope_type {kind!r}; supported are {', '.join(ROPE_TYPES)}"
            )

    def llama(self) -> LlamaConfig:
        """The same shape as transformers says it, for rotary embeddings and saving."""
        return LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=1,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            hidden_act=self.hidden_act,
            max_position_embeddings=self.max_position_embeddings,
            rms_norm_eps=self.rms_norm_eps,
            rope_parameters=dict(self.rope_parameters),  # pyright: ignore[reportArgumentType]
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )


@dataclass(frozen=True)
class Eagle3Config(HeadConfig):
    """Shape of an EAGLE-3 head.

    Attributes:
        norm_before_residual: Whether the residual is taken after the norm of the hidden state.
    """

    norm_before_residual: bool = False


@dataclass(frozen=True)
class MtpConfig(HeadConfig):
    """Shape of a head for multi-token prediction; it reads the target's last state alone.

    Attributes:
        num_modules: Modules, n. Several draft one token each; a single one is applied again to
            its own output.
    """

    num_modules: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.num_modules, int) or self.num_modules < 1:
            raise ValueError(f"the head has {self.num_modules!r} modules; it needs at least 1")
        if len(self.feature_layers) != 1:
            raise ValueError(
                f"the head reads the states {list(self.feature_layers)}; multi-token prediction "
                "reads the last one alone"
            )
        if self.target_hidden_size != self.hidden_size:
            raise ValueError(
                f"the head is {self.hidden_size} wide and its target {self.target_hidden_size}; "
                "multi-token prediction needs one width"
            )


@dataclass(frozen=True)
class SharedKvConfig(HeadConfig):
    """Shape of a head that attends to its target's keys and values, and reads its last state.

    `num_key_value_heads`, `head_dim` and `rope_parameters` are the target's.

    Attributes:
        memory_layers: Layer of the target that each of its layers attends to, from 0.
    """

    memory_layers: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.memory_layers or min(self.memory_layers) < 0:
            raise ValueError(
                f"the head attends to the layers {list(self.memory_layers)}; name at least one, 0 "
                "is the target's first"
            )
        if len(self.feature_layers) != 1:
            raise ValueError(
                f"the head reads the states {list(self.feature_layers)}; it takes the target's "
                "last one alone"
            )
        if self.target_hidden_size != self.hidden_size:
            raise ValueError(
                f"the head is {self.hidden_size} wide and its target {self.target_hidden_size}; "
                "it needs one width"
            )


@dataclass(frozen=True)
class DflashConfig(HeadConfig):
    """Shape of a DFlash head, which drafts a whole block in one pass.

    `num_trained_steps` is the number of drafts in a block, and no more can be drafted a round.

    Attributes:
        num_layers: Decoder layers.
        anchor_first: Whether the query at the last decided token drafts as well, every query the
            token after it; if not, each query at a mask drafts the token that it stands for.
        mask_token_id: The token that masks are embedded as; None for an embedding of its own.
    """

    num_layers: int = 1
    anchor_first: bool = False
    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_layers", "num_trained_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"the head has {name} = {value!r}; it must be at least 1")
        mask = self.mask_token_id
        if mask is not None and not 0 <= mask < self.vocab_size:
            raise ValueError(
                f"the head has mask_token_id = {mask!r}; the target has the ids 0 to "
                f"{self.vocab_size - 1}"
            )

    @property
    def num_drafts(self) -> int:
        """Drafts of a block, T."""
        assert self.num_trained_steps is not None
        return self.num_trained_steps

    @property
    def block_size(self) -> int:
        """Queries of a block: the last decided token's, and those at masks."""
        return self.num_drafts + (not self.anchor_first)


@dataclass(frozen=True)
class DsparkConfig(DflashConfig):
    """Shape of a DSpark head: DFlash, a bias by the token before, and a guess of acceptance.

    Attributes:
        markov_rank: Rank of the bias, R.
        logit_scale: Factor of the bias.
        has_confidence: Whether it guesses how likely a draft is to be accepted.
        confidence_reads_token: Whether that guess also reads the token before.
    """

    markov_rank: int = 64
    logit_scale: float = 1.0
    has_confidence: bool = True
    confidence_reads_token: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.markov_rank, int) or self.markov_rank < 1:
            raise ValueError(
                f"the head has markov_rank = {self.markov_rank!r}; it must be at least 1, and a "
                "head without it is one of method 'dflash'"
            )


@dataclass(frozen=True)
class Dflash2Config(DflashConfig):
    """Shape of a DFlash2 head: DFlash, convolutions along the block, and a few candidates a draft.

    Attributes:
        conv_kernel_size: Taps of a convolution.
        conv_group_size: Channels that share the part of a kernel that follows from the query.
        selector_rank: Rank of the candidates' scores.
        selector_top_k: Candidates at each draft.
    """

    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 256
    selector_top_k: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        most = {
            "conv_kernel_size": self.block_size,
            "conv_group_size": self.hidden_size,
            "selector_rank": self.hidden_size,
            "selector_top_k": self.draft_vocab_size,
        }
        for name, highest in most.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= highest:
                raise ValueError(
                    f"the head has {name} = {value!r}; it must be from 1 to {highest}, and a head "
                    "without it is one of method 'dflash'"
                )
        if self.hidden_size % self.conv_group_size:
            raise ValueError(
                f"the head has conv_group_size = {self.conv_group_size}, which does not divide its "
                f"width {self.hidden_size}"
            )
