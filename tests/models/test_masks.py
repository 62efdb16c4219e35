"""The masks against the sentence that defines each."""

from __future__ import annotations

import pytest
import torch

from fairdraft.models.masks import AlignedMasks, AttentionKind, additive_mask

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("start", "width"), [(0, 1), (0, 5), (7, 1), (7, 5), (19, 5), (23, 1), (3, 20)]
)
def test_aligned_rows_have_the_same_mask(start: int, width: int, dtype: torch.dtype) -> None:
    positions = torch.arange(start, start + width)[None]
    expected = additive_mask(positions, LENGTH, AttentionKind("full"), dtype)
    found = AlignedMasks(LENGTH, dtype, torch.device("cpu")).get(start, width, LENGTH)
    assert torch.equal(found, expected) and found.dtype == dtype
