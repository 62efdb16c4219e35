"""Openings to continue: enough of them, and different enough, that no context dominates."""

from __future__ import annotations

import hashlib
import json

__all__ = ["PROMPTS", "digest_prompts"]

PROMPTS = (
    "Once upon a time",
    "The old lighthouse keeper climbed the stairs and",
    "Every morning, before the bakery opened, Nora",
    "There was a small blue boat that nobody wanted, because",
    '"Who left the gate open?" asked',
    "Deep in the forest lived a fox who",
    "On the first day of school, Tim was afraid of",
    "My grandmother kept a box under her bed, and in it",
    "The snow had fallen all night. When the children",
    "A tired bird sat down on the roof and said,",
    "Long ago, two brothers shared a field. One year",
    "It was raining, so Mia and her dog",
    "The king had three wishes left, but",
    "At the edge of the village stood a tree that",
    "Ben found a shiny stone by the river. He",
    '"Please be careful," said the doctor,',
    "When the circus came to town, everyone",
    "Nobody knew why the clock had stopped, until",
    "The little train puffed up the hill and",
    "In a garden full of roses, a snail",
    "Anna wanted to bake a cake, but there was no",
    "The moon looked down at the sleeping",
    "After the storm, the fishermen went out to",
    "A mouse who could read found a letter that",
    "Sam and Lily built a castle of sand. Then",
    "The teacher drew a circle on the board and asked",
    "Far away, behind the mountains, there",
    "Yesterday the cat came home with",
    "The recipe needs two eggs, a cup of flour and",
    "He opened the door slowly. Inside",
    "Summer was over, and the swallows",
    "One day a boy asked the wind where",
    "The robot woke up in an empty room. It",
    '"I have never seen the sea," said',
    "In winter the pond froze, and all the ducks",
    "Her favorite color was green, so",
    "The market was loud and full of people. A man",
    "Two frogs fell into a bucket of milk.",
    "The map showed a path that went to",
    "Max could not sleep. He counted",
    "It was the smallest house in the street, and",
    "The dragon was not angry at all; he",
    "Before dinner, Dad told them about",
    "A kind woman gave the beggar some bread, and he",
    "The balloon flew higher and higher, over",
    "On the last page of the book was",
    "All the animals came to the meeting, except",
    "The bridge was old and shook when",
)


def digest_prompts(prompts: list[list[int]]) -> str:
    """Tells lists of prompts, as ids, apart in the record of a run."""
    text = json.dumps(prompts, separators=(",", ":"))
    return f"{len(prompts)} prompts, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
