"""Samples the corpus from the teacher and keeps the clean documents.

python -m train.pocket.corpus corpus.jsonl --seconds 150
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from train.pocket.data import write_documents
from train.pocket.prompts import Prompt, draw_prompts
from train.pocket.teacher import Decoder, Sampling, find_teacher, load_teacher

PLAIN = str.maketrans(
    {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2014": " - ", "\u2013": "-"}
    | {"\u2026": "...", "\u00a0": " ", "\u2011": "-"}
)
JUNK = re.compile(
    r"as an ai|language model|ai assistant|smollm|hugging ?face|i'm sorry, but|i cannot|```|http|"
    r"<\||\[.{0,30}\]|\*\*|##|your name|word count|in this story|this story|(?<!moral of )the story|"
    r"this conversation|children's|here is a|here's a|in simple words|could be:|"
    r"short story|conversation between",
    re.IGNORECASE,
)
MAX_PROMPT = 72


def clean(text: str) -> str:
    """Plain quotes, no trailing spaces, no runs of blank lines."""
    text = text.translate(PLAIN).strip()
    text = re.sub(r"[ \t]+\n", "\n", re.sub(r"[ \t]{2,}", " ", text))
    return re.sub(r"\n{3,}", "\n\n", text)


def reason_to_drop(text: str) -> str | None:
    """Names what is wrong with a document; None keeps it."""
    words = text.lower().split()
    if not 30 <= len(words) <= 400:
        return "length"
    if not all(c == "\n" or " " <= c <= "~" for c in text):
        return "characters"
    if JUNK.search(text):
        return "junk"
    if text[-1] not in ".!?\"'":
        return "unfinished"
    grams = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    if grams and max(grams.values()) > 3:
        return "repetition"
    if len(set(words)) < 0.35 * len(words):
        return "repetition"
    return None


def documents(
    prompts: list[Prompt], texts: Iterable[tuple[int, str]], dropped: Counter[str]
) -> Iterator[dict[str, str]]:
    """Builds, filters and de-duplicates documents; counts what is dropped and why."""
    seen: set[str] = set()
    for number, text in texts:
        prompt = prompts[number]
        body = clean(prompt.opening + text)
        whole = f"{prompt.heading}\n{body}" if prompt.heading else body
        reason = reason_to_drop(whole)
        if reason is None and whole[-200:] in seen:
            reason = "duplicate"
        dropped[reason or "kept"] += 1
        if reason is None:
            seen.add(whole[-200:])
            yield {"prompt": prompt.heading or prompt.instruction, "text": whole}


def chat(prompt: Prompt) -> str:
    """The prompt in the teacher's chat format, without a system message."""
    begin = f"<|im_start|>user\n{prompt.instruction}<|im_end|>\n<|im_start|>assistant\n"
    return begin + prompt.opening


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--teacher", type=Path, help="folder of the GGUF file")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--prompts", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--length", type=int, default=448)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="JSON file for counts and rates")
    args = parser.parse_args()
    begin = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model, tokenizer = load_teacher(args.teacher or find_teacher(), dtype)
    model = model.to(device)
    print(f"teacher: loaded in {time.monotonic() - begin:.0f} s")
    torch.manual_seed(args.seed)
    prompts = draw_prompts(args.prompts, args.seed)
    encoded = tokenizer.backend_tokenizer.encode_batch(
        [chat(p) for p in prompts], add_special_tokens=False
    )
    fits = [i for i, e in enumerate(encoded) if len(e.ids) <= MAX_PROMPT]
    prompts, rows = [prompts[i] for i in fits], [encoded[i].ids for i in fits]
    padded = torch.tensor([ids + [0] * (MAX_PROMPT - len(ids)) for ids in rows])
    eos = [tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")]
    decoder = Decoder(
        model,
        padded,
        torch.tensor([len(ids) for ids in rows]),
        batch=args.batch,
        length=args.length,
        max_steps=args.steps,
        eos=eos,
        sampling=Sampling(),
        compiled=device == "cuda",
    )
    print(f"teacher: {len(prompts)} prompts ready at {time.monotonic() - begin:.0f} s")
    start = time.monotonic()
    fed = decoder.run(args.steps, args.seconds)
    seconds = time.monotonic() - start
    texts = decoder.texts()
    decoded = tokenizer.batch_decode(list(texts.values()))
    dropped: Counter[str] = Counter()
    kept = list(documents(prompts, zip(texts, decoded, strict=True), dropped))
    write_documents(args.output, kept)
    report = {
        "tokens_fed": fed,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(fed / seconds),
        "documents": dict(dropped),
        "bytes_kept": sum(len(d["text"]) for d in kept),
        "sampling": vars(Sampling()),
        "batch": args.batch,
    }
    print(json.dumps(report))
    if args.report:
        args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
