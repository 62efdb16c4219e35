"""Instructions for the teacher: templates times word lists."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

WORDS = {
    name: [word.strip() for word in text.replace("\n", " ").split(",")]
    for name, text in tomllib.loads(
        Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
    ).items()
}
QUESTIONS = [
    *("What is {s}?", "How does {s} work?", "Why is {s} important?", "Where does {s} come from?"),
    *("What can we learn from {s}?", "Why do people like {s}?", "What is special about {s}?"),
    *("How do people use {s}?", "How do children learn about {s}?", "What happens without {s}?"),
]
PLURAL_QUESTIONS = [
    *("What are {s}?", "How do {s} work?", "Why are {s} important?", "Where do {s} come from?"),
    *("What can we learn from {s}?", "Why do people like {s}?", "What is special about {s}?"),
    *("How do people use {s}?", "How do children learn about {s}?", "What happens without {s}?"),
]
STYLES = [
    *("Answer in simple words.", "Answer in a few short sentences.", "Answer for a child."),
    *("Give one short example.", "Answer in one short paragraph.", "Be clear and friendly."),
]
GREETINGS = ["Hello", "Hi,", "I", "Look", "Do you", "What", "Good morning,", "We", "Yesterday"]
OPENINGS = ["", "", "Once upon a time", "One day,", "Once there was"]


@dataclass(frozen=True)
class Prompt:
    """One instruction: what the teacher reads, and what begins the kept document."""

    instruction: str
    heading: str = ""
    opening: str = ""


def pick(r: random.Random, name: str) -> str:
    """One word of a list."""
    return r.choice(WORDS[name])


def with_article(words: str) -> str:
    """The words after `a` or `an`."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def story(r: random.Random) -> Prompt:
    """A story about a person or an animal."""
    animal = f"{pick(r, 'traits')} {pick(r, 'animals')}"
    who = with_article(r.choice([animal, animal, pick(r, "jobs")]))
    name = pick(r, "names")
    who = r.choice([f"{who} named {name}", who, f"a child named {name}"])
    text = f"Write a short story for children about {who} who {pick(r, 'events')}"
    return Prompt(f"{text} {pick(r, 'places')}. Use simple words.", opening=r.choice(OPENINGS))


def story_of_words(r: random.Random) -> Prompt:
    """A story that must use three words."""
    words = f"{pick(r, 'things')}, {pick(r, 'verbs')} and {pick(r, 'traits')}"
    text = f"Write a short story for children about {pick(r, 'names')}."
    return Prompt(f"{text} Use the words {words}.", opening=r.choice(OPENINGS))


def fable(r: random.Random) -> Prompt:
    """A fable of two animals."""
    one, other = r.sample(WORDS["animals"], 2)
    pair = f"{with_article(one)} and {with_article(other)}"
    return Prompt(f"Write a short fable about {pair} that teaches {pick(r, 'morals')}.")


def dialogue(r: random.Random) -> Prompt:
    """A conversation of two named people; the first speaker is given."""
    one, other = r.sample(WORDS["names"], 2)
    thing = with_article(pick(r, "things"))
    about = r.choice([pick(r, "subjects"), thing, f"how to {pick(r, 'tasks')}"])
    text = f"Write a short conversation between {one} and {other} about {about}."
    return Prompt(
        f"{text} Begin each line with the name of the speaker.",
        opening=f"{one}: {r.choice(GREETINGS)}",
    )


def question(r: random.Random) -> Prompt:
    """A plain question, kept as the first line of the document."""
    subject = pick(r, "subjects")
    plural = subject.endswith("s") and subject not in ("glass", "the tides")
    asked = r.choice(PLURAL_QUESTIONS if plural else QUESTIONS).format(s=subject)
    return Prompt(f"{asked} {r.choice(STYLES)}", heading=asked)


def how_to(r: random.Random) -> Prompt:
    """A practical question, kept as the first line of the document."""
    asked = f"How do I {pick(r, 'tasks')}?"
    return Prompt(f"{asked} {r.choice(STYLES)}", heading=asked)


def description(r: random.Random) -> Prompt:
    """A place at a time of day or year."""
    seen = with_article(f"{pick(r, 'traits')} {pick(r, 'animals')}")
    text = f"Describe in a few simple sentences what one sees {pick(r, 'places')}"
    return Prompt(f"{text} {pick(r, 'times')}. There is {seen}.")


def letter(r: random.Random) -> Prompt:
    """A letter between two people."""
    one, other = r.sample(WORDS["names"], 2)
    thing = with_article(pick(r, "things"))
    text = f"Write a short, friendly letter from {one} to {other} about {thing}"
    return Prompt(f"{text} and a day {pick(r, 'places')}.", opening=f"Dear {other},")


KINDS: list[tuple[Callable[[random.Random], Prompt], float]] = [
    *((story, 0.36), (story_of_words, 0.16), (fable, 0.08), (dialogue, 0.16)),
    *((question, 0.1), (how_to, 0.04), (description, 0.04), (letter, 0.06)),
]


def draw_prompts(
    count: int,
    seed: int = 0,
    *,
    repeats: int = 20,
    kinds: Sequence[tuple[Callable[[random.Random], Prompt], float]] = KINDS,
) -> list[Prompt]:
    """Draws prompts; a plain question may come back up to `repeats` times, others once."""
    r = random.Random(seed)
    makers, weights = zip(*kinds, strict=True)
    seen: dict[str, int] = {}
    prompts = []
    while len(prompts) < count:
        prompt = r.choices(makers, weights)[0](r)
        allowed = repeats if prompt.heading else 1
        if seen.get(prompt.instruction, 0) < allowed:
            seen[prompt.instruction] = seen.get(prompt.instruction, 0) + 1
            prompts.append(prompt)
    return prompts
