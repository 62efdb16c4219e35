"""The DFlash2 head: DFlash with convolutions along the block, and a choice between few candidates.

Before and after attention and MLP of each layer a causal convolution mixes a query with the ones
before it in its block; its kernel is a learned one, plus one that follows from the query. Of the
output head's logits at each draft only the C best are kept, and each gets a score for following the
draft before: unary + <A[before] * P h, B[candidate]>. So q depends on the draft before, at the cost
of a product of rank R a candidate, and the block's pass is not run again. Facts: the layouts that
`dflash_layout` reads, and vllm-project/vllm 0.33.0.

Axes: N blocks, S queries of a block, H width, G groups of channels, T taps, R rank, K candidates,
V target ids, C draft ids.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fairdraft.speculators.heads.config import Dflash2Config
from fairdraft.speculators.heads.dflash import DflashHead, DflashLayer
from fairdraft.speculators.heads.layer import Attend


class BlockConvolution(nn.Module):
    """Two causal convolutions along blocks, one before a part of a layer and one behind it.

    Args:
        config: Of the head.
    """

    def __init__(self, config: Dflash2Config) -> None:
        super().__init__()
        self.num_taps, self.block_size = config.conv_kernel_size, config.block_size
        self.num_groups = config.hidden_size // config.conv_group_size
        self.base_kernel = nn.Parameter(torch.empty(2, self.num_taps, config.hidden_size))
        width = 2 * self.num_taps * self.num_groups
        self.kernel_projection = nn.Linear(config.hidden_size, width, bias=False)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Makes both of them change nothing."""
        self.base_kernel.zero_()
        self.base_kernel[:, 0] = 1.0
        self.kernel_projection.weight.zero_()

    def before(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Convolves the input of a part.

        Args:
            hidden: Whole blocks, one behind the other [..., S, H].

        Returns:
            The convolved input, and the kernels for `behind` [..., S, T, G].
        """
        shape = (*hidden.shape[:-1], 2, self.num_taps, self.num_groups)
        kernels = self.kernel_projection(hidden).view(shape)
        return self._convolved(hidden, kernels[..., 0, :, :], 0), kernels[..., 1, :, :]

    def behind(self, hidden: Tensor, kernels: Tensor) -> Tensor:
        """Convolves the output of a part [..., S, H]."""
        return self._convolved(hidden, kernels, 1)

    def _convolved(self, hidden: Tensor, kernels: Tensor, side: int) -> Tensor:
        # [N, S, G, channels of a group]
        blocks = hidden.view(
            -1, self.block_size, self.num_groups, hidden.shape[-1] // self.num_groups
        )
        kernels = kernels.view(*blocks.shape[:2], self.num_taps, self.num_groups, 1)
        base = self.base_kernel[side].to(hidden.dtype).view(self.num_taps, *blocks.shape[2:])
        result = (base[0] + kernels[:, :, 0]) * blocks
        for tap in range(1, self.num_taps):
            # nothing comes from another block
            shifted = functional.pad(blocks, (0, 0, 0, 0, tap, 0))[:, : self.block_size]
            result = result + (base[tap] + kernels[:, :, tap]) * shifted
        return result.view(hidden.shape)


class Dflash2Layer(DflashLayer):
    """A decoder layer on the queries of blocks, with convolutions round attention and MLP."""

    def __init__(self, config: Dflash2Config) -> None:
        super().__init__(config)
        self.attention_conv = BlockConvolution(config)
        self.mlp_conv = BlockConvolution(config)

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Returns the hidden states of the queries, whole blocks [..., S, H]."""
        read, kernels = self.attention_conv.before(self.input_layernorm(hidden))
        attended = self.self_attn(read, angles, attend)
        hidden = hidden + self.attention_conv.behind(attended, kernels)
        read, kernels = self.mlp_conv.before(self.post_attention_layernorm(hidden))
        return hidden + self.mlp_conv.behind(self.mlp(read), kernels)


class CandidateSelector(nn.Module):
    """Scores of candidates for following the token before.

    Args:
        config: Of the head.
    """

    def __init__(self, config: Dflash2Config) -> None:
        super().__init__()
        rank = config.selector_rank
        self.predecessor_codebook = nn.Parameter(torch.empty(config.vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(config.draft_vocab_size, rank))
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Makes all scores 0 until the successors learn something."""
        self.predecessor_codebook.normal_(0.0, 1.0)
        self.successor_codebook.zero_()
        nn.init.normal_(self.hidden_projection.weight, std=self.hidden_projection.in_features**-0.5)

    def project(self, hidden: Tensor) -> Tensor:
        """What a draft's output contributes: P h [..., R] of [..., H]."""
        return self.hidden_projection(hidden)

    def edges(self, projected: Tensor, before: Tensor, candidates: Tensor) -> Tensor:
        """Scores of candidates, float32 [..., K].

        Args:
            projected: Of the drafts, see `project` [..., R].
            before: Target id of the token before each, int64 [...].
            candidates: Draft ids, int64 [..., K].
        """
        context = self.predecessor_codebook[before] * projected
        successors = self.successor_codebook[candidates]
        return (successors.float() * context.float()[..., None, :]).sum(-1)

    def all_edges(self, projected: Tensor, before: Tensor) -> Tensor:
        """Scores of all draft ids, float32 [..., C]; arguments as in `edges`."""
        context = self.predecessor_codebook[before] * projected
        return functional.linear(context, self.successor_codebook).float()


class Dflash2Head(DflashHead):
    """The head; arguments as in `DflashHead`."""

    kind = "a DFlash2 head"
    config: Dflash2Config

    def __init__(
        self,
        config: Dflash2Config,
        target_ids: Tensor | None = None,
        *,
        owns_embedding: bool = False,
        owns_output: bool = False,
    ) -> None:
        super().__init__(config, target_ids, owns_embedding=owns_embedding, owns_output=owns_output)
        self.candidate_selector = CandidateSelector(config)

    def new_layer(self) -> Dflash2Layer:
        """As `DflashHead.new_layer`."""
        return Dflash2Layer(self.config)

    def reset(self) -> None:
        """Makes of new weights a DFlash head: no convolution and no edge changes anything."""
        for module in self.modules():
            if isinstance(module, BlockConvolution | CandidateSelector):
                module.reset()


def best_ids(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest logits, ties to the lower id whatever the device; NaN comes first.

    Args:
        logits: float32 [..., C].
        count: K, at most C.

    Returns:
        int64 [..., K], best first.
    """
    # numbers in the order of their bits: a float's, but that negative ones run backwards
    bits = (logits + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ordered = torch.where(logits.isnan(), 0x7FFFFFFF, ordered).long()
    size = logits.shape[-1]
    keys = (ordered << 32) + torch.arange(size - 1, -1, -1, device=logits.device)
    return keys.topk(count).indices
