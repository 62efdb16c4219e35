"""Openings of held-out documents of the embedded models, as their evaluation recorded them."""

from __future__ import annotations

#: from `train/pocket/results/evaluation.json`, in its order
PROMPTS = (
    "In the bustling streets of a big city, there was a friendly little dog",
    "Once upon a time in the land of the sea, there was a little girl",
    "One day, in the land of the fox and the monkey, there was a",
    "Once upon a time, in the ocean's depths, there was a magnificent",
    "In the snowy valley, there was a young fox named Peter who had just learned",
    "Once upon a time, there was a brave knight named Sir Edward who had been",
    "Once upon a time, there was a little turtle named Timmy who lived in a",
    "There was a brave young girl named Lily who lived in a big house with her",
    "One sunny day, Sam was at the bakery, and he had made a special",
    "Once there was a brave and curious cat named Simon, who lived in a cozy",
    "Ruby: Good morning, Anna! I hope you're doing well. How are",
    "In the vast, empty land of a faraway place called the Moon,",
)


def default_prompts(batch: int) -> tuple[str, ...]:
    """`PROMPTS`, which are of one length; for a batch of several cut to 3 words, 4, 5 and so on.

    Args:
        batch: Requests at a time.
    """
    if batch == 1:
        return PROMPTS
    return tuple(" ".join(text.split(" ")[: 3 + i]) for i, text in enumerate(PROMPTS))


#: messages to a model that answers, of several kinds and lengths
QUESTIONS = (
    "What is the capital of Italy?",
    "Explain in simple words why the sky is blue.",
    "Write a short story about a fox who finds a lighthouse.",
    "Give me five tips to sleep better.",
    "Write a Python function that returns the largest number in a list.",
    "What do cats and owls have in common?",
    "Summarize the following text in one sentence.\n\nMaria is a baker. Every morning Maria goes "
    "to the mill and looks after an old horse. Last year she learned to paint. At first it was "
    "hard, and then it was fun.",
    "How do I write a polite letter to my landlord about a broken window?",
    "Name three kinds of bridges and say what each is good for.",
    "Rewrite the following text in a friendlier tone.\n\nYou are late again. Send the report now.",
    "What happened to the dinosaurs?",
    "Describe a rainy day in a small town by the sea.",
)
