"""What a training is asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """Size and length of a training; everything that decides its result.

    Attributes:
        steps: Optimizer steps; None for as many as `seconds` allow.
        seconds: A limit by the clock, the first steps, which compile, apart: the rate falls to 0 by
            then. What comes out depends on the machine. None for no limit.
        batch: Windows a step.
        length: Slots of a window.
        learning_rate: Of AdamW at the plateau.
        num_drafts: Drafts a round that the head is trained for: steps that it runs on its own
            output, or masks of a block.
        block_every: A window holds one block of masks for so many of its slots; heads that draft
            step by step begin at each.
        decay: Weight of each further draft in the loss; 0.8 as published for EAGLE-3, and close to
            the exp(-1 / 4) of DFlash for blocks of 8.
        tv_weight: Weight of the total variation, the chance that a draft is rejected at
            temperature 1, on top of the paper's cross-entropy; 0 is the paper's loss.
        warmup: Share of the steps over which the rate rises.
        cooldown: Share of the steps over which it falls to 0.
        weight_decay: Of matrices.
        seed: Of weights and windows.
    """

    steps: int | None = 2000
    seconds: float | None = None
    batch: int = 16
    length: int = 256
    learning_rate: float = 1e-3
    num_drafts: int = 5
    block_every: int = 4
    decay: float = 0.8
    tv_weight: float = 0.0
    warmup: float = 0.02
    cooldown: float = 0.5
    weight_decay: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "length", "num_drafts", "block_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        if self.steps is None and self.seconds is None:
            raise ValueError("steps and seconds are both None: a training ends by one of them")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds = {self.seconds}: must be above 0")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate = {self.learning_rate}: must be above 0")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay = {self.decay}: must be above 0 and at most 1")
        if self.tv_weight < 0:
            raise ValueError(f"tv_weight = {self.tv_weight}: must be at least 0")

    @property
    def width(self) -> int:
        """Ids of a window: its slots, and what the later drafts look ahead."""
        return self.length + self.num_drafts

    @property
    def num_blocks(self) -> int:
        """Blocks of a window, at least one."""
        return max(1, self.length // self.block_every)

    def progress(self, done: int, seconds: float) -> float:
        """How much of the training is done, 0 to 1, after so many steps and seconds."""
        by_steps = done / self.steps if self.steps else 0.0
        by_clock = seconds / self.seconds if self.seconds else 0.0
        return min(1.0, max(by_steps, by_clock))

    def rate(self, progress: float) -> float:
        """Learning rate at some progress: a trapezoid."""
        up = progress / self.warmup if self.warmup else 1.0
        down = (1 - progress) / self.cooldown if self.cooldown else 1.0
        return self.learning_rate * max(0.0, min(1.0, up, down))

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for files."""
        return asdict(self)
