"""Messages of a user: the pocket teacher's instructions, and more of what a chat is used for."""

from __future__ import annotations

import random
from collections.abc import Callable

from train.pocket.prompts import KINDS as STORIES
from train.pocket.prompts import WORDS, Prompt, pick, with_article

ASIDES = ["", "", "", " Keep it short.", " Use simple words.", " Explain step by step."]
LISTS = ["List {n} facts about {s}.", "Give me {n} tips to {t}.", "Name {n} kinds of {s}."]
PASSAGES = [
    "{name} is {job}. Every {time} {name} goes {place} and looks after {animal}.",
    "Last year {name} and {other} learned to {t}. At first it was hard, and then it was fun.",
    "Many people ask about {s}. {name}, {job}, wrote a small book about {s} for children.",
]
TASKS = [
    "Summarize the following text in one sentence.\n\n{text}",
    "Rewrite the following text in a friendlier tone.\n\n{text}",
    "Correct the spelling of the following text.\n\n{text}",
    "Who is mentioned in the following text?\n\n{text}",
]
CODE = [
    "Write a Python function that counts how often a {thing} is in a list of strings.",
    "Write a Python class for {thing} with a name and a price.",
    "Explain what a loop does, with {thing} as the example.",
]


def with_list(r: random.Random) -> Prompt:
    """A request for a numbered list."""
    words = {"n": r.randint(3, 7), "s": pick(r, "subjects"), "t": pick(r, "tasks")}
    return Prompt(r.choice(LISTS).format(**words) + r.choice(ASIDES))


def about_text(r: random.Random) -> Prompt:
    """A short passage and what to do with it: answers copy from it."""
    name, other = r.sample(WORDS["names"], 2)
    words = {
        "name": name,
        "other": other,
        "job": with_article(pick(r, "jobs")),
        "time": r.choice(["morning", "evening", "Sunday", "summer"]),
        "place": pick(r, "places"),
        "animal": with_article(f"{pick(r, 'traits')} {pick(r, 'animals')}"),
        "t": pick(r, "tasks"),
        "s": pick(r, "subjects"),
    }
    text = " ".join(r.sample(PASSAGES, 2)).format(**words)
    return Prompt(r.choice(TASKS).format(text=text))


def about_code(r: random.Random) -> Prompt:
    """A small programming task."""
    return Prompt(r.choice(CODE).format(thing=pick(r, "things")) + r.choice(ASIDES))


def comparison(r: random.Random) -> Prompt:
    """Two subjects side by side."""
    one, other = pick(r, "subjects"), pick(r, "subjects")
    return Prompt(f"What do {one} and {other} have in common?" + r.choice(ASIDES))


KINDS: list[tuple[Callable[[random.Random], Prompt], float]] = [
    *((kind, 0.5 * weight) for kind, weight in STORIES),
    *((with_list, 0.14), (about_text, 0.2), (about_code, 0.08), (comparison, 0.08)),
]
