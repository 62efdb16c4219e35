"""The masks against the sentence that defines each."""

from __future__ import annotations

import pytest
import torch

from fairdraft.models.masks import AttentionKind, additive_mask

LENGTH = 24
POSITIONS = [[0, 1, 2], [5, 6, 7], [21, 22, 23]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "attends"),
    [
        (AttentionKind("full"), lambda query, slot: slot <= query),
        (AttentionKind("sliding", 6), lambda query, slot: query - 6 < slot <= query),
        (AttentionKind("sliding", 1), lambda query, slot: slot == query),
        (
            AttentionKind("chunked", 6),
            lambda query, slot: query // 6 * 6 <= slot <= query,
        ),
    ],
    ids=["full", "sliding", "own slot only", "chunked"],
)
def test_a_query_attends_what_its_layer_reaches(
    kind: AttentionKind, attends: object, dtype: torch.dtype
) -> None:
    mask = additive_mask(torch.tensor(POSITIONS), LENGTH, kind, dtype)
    assert mask.shape == (3, 1, 3, LENGTH) and mask.dtype == dtype
    for row, positions in enumerate(POSITIONS):
        for i, query in enumerate(positions):
            for slot in range(LENGTH):
                expected = 0.0 if attends(query, slot) else torch.finfo(dtype).min  # pyright: ignore
                assert mask[row, 0, i, slot] == expected
