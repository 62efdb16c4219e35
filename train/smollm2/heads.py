"""Trains heads for SmolLM2-135M-Instruct on answers that it writes itself.

python -m train.smollm2.heads --output out/smollm2-eagle3            # a GPU, five minutes
python -m train.smollm2.heads --recipe toy --output out/toy          # a CPU, minutes; no use
fairdraft generate smollm2 --draft out/smollm2-eagle3 --prompt "..."
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fairdraft.models import CausalLM, load_model, smollm2
from fairdraft.training import Corpus, HeadShape, Settings
from train.pocket.heads import Recipe, Task, carry_out, read_arguments, sample_texts
from train.pocket.prompts import draw_prompts
from train.smollm2.prompts import KINDS

MAX_PROMPT = 160
HELD_OUT_SEED = 1
# a step of `light` reads 36 MB of float32 weights on a CPU, one of the target 538 MB
SHAPES = {
    "eagle3": {
        "light": HeadShape(draft_vocab_size=8192),
        "wide": HeadShape(draft_vocab_size=16_384),
    },
    "mtp": {"single": HeadShape(draft_vocab_size=8192, num_modules=1)},
}
RECIPES = {
    "toy": Recipe(
        batch=4,
        length=112,
        sample_steps=240,
        sample_seconds=60,
        settings=Settings(steps=4, batch=1, length=32, tv_weight=4.0),
        num_prompts=2,
    ),
    "good": Recipe(
        batch=4096,
        length=448,
        sample_steps=6000,
        sample_seconds=45,
        settings=Settings(
            steps=20_000,
            seconds=120,
            batch=32,
            length=384,
            learning_rate=2e-3,
            tv_weight=4.0,
        ),
        num_prompts=64,
    ),
}


def load(args: argparse.Namespace) -> CausalLM:
    """The target, from the GGUF file of the command line or of the installed package."""
    lm = load_model(smollm2.path(args.gguf), device=args.device)
    lm.name = smollm2.NAME
    return lm


def chat_prompts(target: CausalLM, count: int, seed: int) -> list[list[int]]:
    """Drawn messages in the chat template, without the long ones."""
    drawn = draw_prompts(count, seed, kinds=KINDS)
    messages = [[{"role": "user", "content": prompt.instruction}] for prompt in drawn]
    texts = target.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    encoded = target.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [ids for ids in encoded if len(ids) <= MAX_PROMPT]


def sample(target: CausalLM, recipe: Recipe) -> Corpus:
    """Prompts with their answers, in the chat template; heads learn to draft the answers alone."""
    # a prompt and its answer are rarely below 200 ids together
    rows = max(8 * recipe.batch, recipe.batch * recipe.sample_steps // 200)
    prompts = chat_prompts(target, rows, seed=0)
    texts = sample_texts(target, prompts, recipe)
    documents = [prompt + ids for prompt, ids in texts]
    read = [len(prompt) for prompt, _ in texts]
    return Corpus.from_documents(documents, target.tokenizer.eos_token_id, read)


def other_prompts(target: CausalLM, corpus: Corpus, count: int) -> list[list[int]]:
    """Messages drawn under another seed; a short question may be in the corpus as well."""
    return chat_prompts(target, count, HELD_OUT_SEED)


TASK = Task(
    load=load,
    shapes=SHAPES,
    recipes=RECIPES,
    sample=sample,
    prompts=other_prompts,
    baseline="ngram",
)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, help="the GGUF file, if no package holds it")
    carry_out(TASK, read_arguments(TASK, parser))
