"""Openings in the register of the embedded models; none is a line of their training text."""

from __future__ import annotations

PROMPTS = (
    "Once upon a time a girl found a small brass key under the oldest tree in the garden.",
    "The fisherman looked at the dark sky over the harbor and decided to leave anyway, because",
    '"Where have you been all day?" asked his mother, when the boy came in through the door',
    "Water turns to ice when it gets cold enough. The reason is that the small parts of water",
    "In the morning the two brothers walked to the market with a basket of apples and a",
    "There was an old teacher in our village who knew the name of every bird and every",
    'The cat sat on the wall and said nothing. "I know that you can talk," said the mouse, and',
    "To make a good soup you need an onion, two carrots, some salt and a great deal of",
)
