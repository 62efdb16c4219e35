"""Turns sampled texts into documents: plain characters, no repetition, no junk, no duplicates.

python -m train.pocket.clean raw.jsonl corpus.jsonl --report clean.json
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path

PLAIN = str.maketrans(
    {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2014": " - ", "\u2013": "-"}
    | {"\u2026": "...", "\u00a0": " ", "\u2011": "-"}
)
JUNK = re.compile(
    r"as an ai|language model|ai assistant|smollm|hugging ?face|i'm sorry, but|i cannot|```|http|"
    r"<\||\[.{0,30}\]|\*\*|##|your name|word count|this story|(?<!moral of )the story|"
    r"this conversation|children's|here is a|here's a|in simple words|could be:|"
    r"short story|conversation between",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"\S.*?[.!?][\"')]*(?=\s|$)", re.DOTALL)


def clean(text: str) -> str:
    """Plain quotes, no trailing spaces, no runs of blank lines."""
    text = text.translate(PLAIN).strip()
    text = re.sub(r"[ \t]+\n", "\n", re.sub(r"[ \t]{2,}", " ", text))
    return re.sub(r"\n{3,}", "\n\n", text)


def before_repetition(text: str) -> str:
    """The leading whole sentences of a text, up to the first that repeats what came before.

    A sentence repeats if it is there already, if a run of four of its words was seen twice
    before or comes twice in it, or if a run of six was seen once before. An unfinished last
    sentence is dropped too.
    """
    runs: Counter[tuple[str, ...]] = Counter()
    sentences: set[tuple[str, ...]] = set()
    long_runs: set[tuple[str, ...]] = set()
    end = 0
    for match in SENTENCE.finditer(text):
        words = re.findall(r"[a-z0-9']+", match[0].lower())
        own = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
        long = {tuple(words[i : i + 6]) for i in range(len(words) - 5)}
        if tuple(words) in sentences or len(set(own)) < len(own) or any(runs[r] > 1 for r in own):
            break
        if long & long_runs or any(one == other for one, other in pairwise(words)):
            break
        long_runs |= long
        sentences.add(tuple(words))
        runs.update(own)
        end = match.end()
    return text[:end]


def reason_to_drop(text: str) -> str:
    """Names what is wrong with a document; an empty name keeps it."""
    words = text.lower().split()
    if not 30 <= len(words) <= 400:
        return "length"
    if not all(c == "\n" or " " <= c <= "~" for c in text):
        return "characters"
    if JUNK.search(text):
        return "junk"
    if len(set(words)) < 0.35 * len(words):
        return "repetition"
    return ""


def make_document(line: str) -> tuple[dict[str, str], str]:
    """One document from a line of raw text, and the reason to drop it, empty for none."""
    raw = json.loads(line)
    body = before_repetition(clean(raw["opening"] + raw["text"]))
    whole = f"{raw['heading']}\n{body}" if raw["heading"] else body
    return {"prompt": raw["heading"] or raw["instruction"], "text": whole}, reason_to_drop(whole)


def documents(lines: Iterable[str], counts: Counter[str]) -> Iterator[dict[str, str]]:
    """Builds, filters and de-duplicates documents; counts what is dropped and why."""
    seen: set[str] = set()
    with Pool() as pool:
        for document, reason in pool.imap(make_document, lines, chunksize=500):
            body = document["text"].removeprefix(document["prompt"])[:80]
            reason = reason or ("duplicate" if body in seen else "")
            counts[reason or "kept"] += 1
            if not reason:
                seen.add(body)
                yield document


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--report", type=Path, help="JSON file for the counts")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    size = 0
    with args.raw.open(encoding="utf-8") as raw, args.output.open("w", encoding="utf-8") as out:
        for document in documents(raw, counts):
            size += len(document["text"])
            out.write(json.dumps(document) + "\n")
    report = {"documents": dict(counts), "bytes_kept": size}
    print(json.dumps(report))
    if args.report:
        args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
