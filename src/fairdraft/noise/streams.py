"""What a draw is for: the stream field of every noise address."""

from __future__ import annotations

from enum import IntEnum


class Stream(IntEnum):
    """Purpose of a draw. Two purposes never share a number, whatever their position.

    TARGET: a token of plain decoding, of a round without drafts, or of common noise.
    DRAFT: a token that a speculator proposes.
    ACCEPT: the test of one proposed token.
    RESIDUAL: the token that replaces a rejected draft.
    BONUS: the token after the last present draft, when all of them were accepted.
    AUX: random logits processors.
    """

    TARGET = 1
    DRAFT = 2
    ACCEPT = 3
    RESIDUAL = 4
    BONUS = 5
    AUX = 6


class Level(IntEnum):
    """Which race of a draw a number belongs to: the tokens of a tile, or the tiles."""

    TOKEN = 0
    TILE = 1
