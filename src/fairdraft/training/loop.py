"""The training loop: steps, progress with the time left, checkpoints, and resuming after a kill."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairdraft.training.losses import Losses
from fairdraft.training.settings import Settings

STATE = "training.pt"
#: takes one line of progress
Say = Callable[[str], None]


@dataclass
class Point:
    """One measurement along the way.

    Attributes:
        step: Steps done.
        loss: Mean training loss since the last point.
        acceptance: Held-out chance of acceptance of each draft, if reached.
    """

    step: int
    loss: float
    acceptance: list[float]


@dataclass
class Loop:
    """Minimizes a loss over windows that follow from the step alone.

    A run that was killed goes on from its last checkpoint with the same windows, so it ends where
    it would have ended.

    Attributes:
        parameters: What is trained, by name.
        losses_at: A step to the losses of its windows; a negative step to those of held-out ones.
        settings: How long, how fast.
        origin: What the result follows from besides the settings, as plain values.
        folder: Where checkpoints go.
        say: Takes lines of progress.
        save_seconds: Between two checkpoints.
        num_points: Measurements of a whole run.
    """

    parameters: dict[str, nn.Parameter]
    losses_at: Callable[[int], Losses]
    settings: Settings
    origin: dict[str, Any]
    folder: Path
    say: Say
    save_seconds: float = 60.0
    num_points: int = 25
    points: list[Point] = field(default_factory=list)

    def run(self, *, resume: bool) -> list[Point]:
        """Trains to the end.

        Args:
            resume: Goes on from the folder's checkpoint, if it has one.

        Raises:
            ValueError: If a checkpoint is there and not resumed, damaged, or of other settings or
                another origin; or if the loss stops being finite.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        optimizer = _optimizer(self.parameters, self.settings)
        step, before = 0, 0.0
        path = self.folder / STATE
        if path.is_file():
            if not resume:
                raise ValueError(
                    f"{str(path)!r} is the checkpoint of a training that did not end: resume it, "
                    "remove it, or choose another folder"
                )
            step, before = self._restore(optimizer)
        settings, first, timed = self.settings, step, step
        progress = settings.progress(step, before)
        shown = math.floor(progress * self.num_points)
        # half a step ahead, so that the first step does something
        ahead = 0.5 / settings.steps if settings.steps else 0.0
        begin = saved = time.monotonic()
        recent: list[Tensor] = []
        while progress < 1.0:
            recent.append(self._step(optimizer, step, progress + ahead))
            step += 1
            if step == first + 3:
                # compilation happens in the first steps and is not training
                begin, timed = time.monotonic(), step
            if settings.seconds is not None and step % 8 == 0:
                recent[-1].item()
            elapsed = time.monotonic() - begin
            progress = settings.progress(step, before + elapsed)
            if math.floor(progress * self.num_points) > shown:
                shown = math.floor(progress * self.num_points)
                loss = torch.stack(recent).mean().item()
                pace = elapsed / (step - timed) if step > timed else math.nan
                self._measure(step, loss, progress, pace)
                recent.clear()
            if time.monotonic() - saved > self.save_seconds or progress >= 1.0:
                self._save(optimizer, step, before + elapsed)
                saved = time.monotonic()
        return self.points

    def forget(self) -> None:
        """Removes the checkpoint of a training whose result is written."""
        (self.folder / STATE).unlink(missing_ok=True)

    def _step(self, optimizer: torch.optim.Optimizer, step: int, progress: float) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = self.settings.rate(progress)
        losses = self.losses_at(step)
        losses.total.backward()
        nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return losses.total.detach()

    def _measure(self, done: int, loss: float, progress: float, pace: float) -> None:
        """Notes and says where the training is; `pace` is seconds a step, NaN if unknown."""
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss} by step {done}; try a smaller learning rate")
        # with a graph that nobody walks back: without one the loss would be compiled twice
        held_out = self.losses_at(-1)
        acceptance = [round(value, 4) for value in held_out.acceptance.tolist()]
        self.points.append(Point(done, round(loss, 4), acceptance))
        shown = " ".join(f"{value:.3f}" for value in acceptance)
        line = f"step {done}, {progress:.0%}, loss {loss:.4f}, acceptance held out {shown}"
        if not math.isnan(pace):
            tokens = self.settings.batch * self.settings.length / pace
            left = _duration(pace * done * (1 - progress) / progress)
            line += f", {tokens:,.0f} tokens/s, {left} left"
        self.say(line)

    def _save(self, optimizer: torch.optim.Optimizer, done: int, seconds: float) -> None:
        state = {
            "asked": json.dumps(self._asked()),
            "step": done,
            "seconds": seconds,
            "parameters": {name: p.detach() for name, p in self.parameters.items()},
            "optimizer": optimizer.state_dict(),
            "points": [[p.step, p.loss, *p.acceptance] for p in self.points],
        }
        scratch = self.folder / f".{STATE}.new"
        torch.save(state, scratch)
        os.replace(scratch, self.folder / STATE)

    def _asked(self) -> dict[str, Any]:
        return {**self.origin, **self.settings.as_dict()}

    def _restore(self, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
        path = self.folder / STATE
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            if "asked" not in state:
                raise ValueError("it does not say what it was trained on")
            made = json.loads(state["asked"])
        except Exception as error:
            raise ValueError(
                f"{str(path)!r} is damaged: {error}; remove it to begin anew"
            ) from error
        asked = json.loads(json.dumps(self._asked()))
        changed = sorted(k for k in {*asked, *made} if asked.get(k) != made.get(k))
        if changed:
            raise ValueError(
                f"{str(path)!r} is of a training that differs in {', '.join(changed)}; pass the "
                "same, choose another folder, or remove it to begin anew"
            )
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state["parameters"][name])
        optimizer.load_state_dict(state["optimizer"])
        self.points = [Point(int(row[0]), row[1], row[2:]) for row in state["points"]]
        self.say(f"resumed at step {state['step']}")
        return state["step"], state["seconds"]


def _optimizer(parameters: dict[str, nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=matrices[0].is_cuda)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
