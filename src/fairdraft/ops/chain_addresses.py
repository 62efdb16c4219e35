"""Addresses of the draws of a verified batch.

Axes: B requests, K drafts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fairdraft import noise
from fairdraft.noise import Stream
from fairdraft.noise.address import as_keys
from fairdraft.ops import rows


def request_fields(at: tuple[Any, Any, Any], count: int) -> tuple[np.ndarray, np.ndarray, Any]:
    """Key, anchor and sample of each of `count` requests as columns; an integer sample stays one.

    Raises:
        ValueError: If one of them is neither a scalar nor one a row.
    """
    key, anchor, sample = at
    keys = as_keys(key)
    if keys.shape not in ((), (count,)):
        raise ValueError(f"key has shape {keys.shape}; give a scalar or one key a row ({count})")
    keys = keys.reshape(-1, 1)
    anchors = rows.as_vector("anchor", anchor, count, np.int64)[:, None]
    if not isinstance(sample, int):
        sample = rows.as_vector("sample", sample, count, np.int64)[:, None]
    return keys, anchors, sample


def chain_addresses(
    at: tuple[Any, Any, Any], num_drafts: np.ndarray, depth: int, *, is_common: bool = False
) -> tuple[noise.Address, noise.Address]:
    """The K tests and the K + 1 last tokens of each request; `at` is key, anchor and sample.

    Under common noise there are no tests, and every token has the address of plain decoding.
    """
    count = len(num_drafts)
    keys, anchors, sample = request_fields(at, count)
    if is_common or not depth:
        positions = anchors + np.arange(depth + 1)
        final_at = noise.address(Stream.TARGET, key=keys, position=positions, sample=sample)
        return final_at[:0], final_at
    nodes, offsets, streams = _columns(depth)
    streams = streams[num_drafts]
    positions = anchors + offsets
    if np.count_nonzero(num_drafts) < count:
        is_plain = num_drafts == 0
        anchors, nodes = (
            np.where(is_plain[:, None], 0, anchors),
            np.where(is_plain[:, None], 0, nodes),
        )
    # one call names everything: on a few rows calls cost more than what they compute
    named = noise.address(
        streams, key=keys, position=positions, anchor=anchors, node=nodes, sample=sample
    )
    width = 2 * depth + 1
    key, counter = named.key.reshape(count, width), named.counter.reshape(count, width, 4)
    return (
        _joined(key[:, :depth], counter[:, :depth]),
        _joined(key[:, depth:], counter[:, depth:]),
    )


@cache
def _columns(depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Node and position less the anchor of the K tests and then the K + 1 last tokens [2 K + 1].

    And their streams where a request has 0, 1, .. K drafts [K + 1, 2 K + 1].
    """
    drafts, last = np.arange(depth), np.arange(depth + 1)
    tests = np.full((depth + 1, depth), int(Stream.ACCEPT))
    ends = np.where(last < last[:, None], int(Stream.RESIDUAL), int(Stream.BONUS))
    ends[0] = Stream.TARGET
    return (
        np.concatenate([drafts + 1, last]),
        np.concatenate([drafts, last]),
        np.concatenate([tests, ends], axis=1),
    )


def _joined(key: np.ndarray, counter: np.ndarray) -> noise.Address:
    # a part of the columns is copied, since no view of it is flat
    return noise.Address(key.reshape(-1), counter.reshape(-1, 4))
