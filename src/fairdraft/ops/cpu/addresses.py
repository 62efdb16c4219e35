"""Addresses of a verified chain in one call: numba twin of `ops/chain_addresses.py`, same bits.

Axes: B requests, K drafts.
"""

from __future__ import annotations

import numpy as np

from fairdraft.noise import Stream
from fairdraft.noise.address import ANCHOR_BITS, NODE_BITS, POSITION_BITS, SAMPLE_BITS, STREAM_SHIFT
from fairdraft.ops.cpu.kernel import kernel

_ACCEPT, _RESIDUAL, _BONUS, _TARGET = (
    int(stream) << STREAM_SHIFT
    for stream in (Stream.ACCEPT, Stream.RESIDUAL, Stream.BONUS, Stream.TARGET)
)


@kernel
def name_chain(keys, anchors, samples, num_drafts, depth):
    """Names the tests and the last tokens of each request.

    Args:
        keys: uint64 [B, 1] or [1, 1].
        anchors: int64 [B, 1].
        samples: int64 [B, 1].
        num_drafts: int64 [B].
        depth: K.

    Returns:
        Whether all fields fit their bits; keys and counters of the tests [B K] and of the last
        tokens [B (K + 1)], which mean nothing if they do not.
    """
    count = len(num_drafts)
    test_keys, test_counters = (
        np.empty(count * depth, np.uint64),
        np.empty((count * depth, 4), np.uint32),
    )
    last_keys = np.empty(count * (depth + 1), np.uint64)
    last_counters = np.empty((count * (depth + 1), 4), np.uint32)
    do_fit = depth >> NODE_BITS == 0
    for b in range(count):
        anchor, key = anchors[b, 0], keys[b if len(keys) > 1 else 0, 0]
        sample = samples[b, 0]
        # a negative number shifts to -1
        do_fit &= anchor >> ANCHOR_BITS == 0 and (anchor + depth) >> POSITION_BITS == 0
        do_fit &= sample >> SAMPLE_BITS == 0
        is_plain = num_drafts[b] == 0
        named = 0 if is_plain else anchor
        for r in range(depth + 1):
            if r < depth:
                place = b * depth + r
                test_keys[place] = key
                test_counters[place, 0], test_counters[place, 1] = anchor + r, named
                test_counters[place, 2] = _ACCEPT
                test_counters[place, 3] = sample << NODE_BITS | (0 if is_plain else r + 1)
            place = b * (depth + 1) + r
            last_keys[place] = key
            last_counters[place, 0], last_counters[place, 1] = anchor + r, named
            stream = _RESIDUAL if r < num_drafts[b] else _BONUS
            last_counters[place, 2] = _TARGET if is_plain else stream
            last_counters[place, 3] = sample << NODE_BITS | (0 if is_plain else r)
    return do_fit, test_keys, test_counters, last_keys, last_counters
