"""A rejection sampler with vLLM's arguments, on `fairdraft.ops`: what an engine would put in place.

Axes: R requests of a batch, S request slots, N rows of logits, K drafts, V vocabulary.
"""

import torch

from fairdraft import ops
from fairdraft.noise import Stream


def propose(logits, step, anchor, idx_mapping, temperature, noise_keys):
    """Draws draft `step` (0..K-1) of each request from its logits [R, V]."""
    key, node = noise_keys[idx_mapping], torch.full_like(anchor, step + 1)
    at = ops.DeviceAddress(Stream.DRAFT, key, position=anchor + step, anchor=anchor, node=node)
    return ops.sample(logits, at, temperature=temperature[idx_mapping]).token_ids


def rejection_sample(
    target_logits,  # [N, V], processed and divided by temperature
    draft_logits,  # [S, K, V], as `propose` was given them
    draft_sampled,  # int64 [N]: draft i is at its request's row i, -1 where it is absent
    cu_num_logits,  # [R + 1]
    pos,  # int64 [N], of the token that each row was computed from
    idx_mapping,  # int64 [R], slot of each request
    temperature,  # [S]
    noise_keys,  # int64 [S], of `noise.request_key(seed, prompt_token_ids)`, made at admission
):
    """Sampled ids [R, K + 1], padded with -1, and how many of them each request emits [R]."""
    own = temperature[idx_mapping]
    verdict = ops.verify_chain(
        target_logits,
        draft_sampled,
        draft_logits=draft_logits,
        cu_num_logits=cu_num_logits,
        idx_mapping=idx_mapping,
        key=noise_keys[idx_mapping],
        anchor=pos[cu_num_logits[:-1].long()] + 1,
        temperature=(own >= 1e-5).to(own.dtype),  # 1, or 0 for greedy: divided already
        draft_temperature=own,
    )
    return verdict.token_ids, verdict.num_emitted_tokens
