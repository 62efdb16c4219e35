"""What the suffix speculator costs the host: a row and round by length, and a kept token.

Texts are Zipf tokens with copied passages; each call continues a text cut at a random place in its
second half. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc

import numpy as np
from conditions import conditions

from fairdraft.speculators import PastOutputs, SuffixSpeculator

NUM_DRAFTS, VOCAB = 8, 150_000


def text(generator: np.random.Generator, length: int) -> np.ndarray:
    """Zipf tokens, a copy of an earlier passage every 200."""
    tokens = np.minimum(generator.zipf(1.2, length), VOCAB).astype(np.int64)
    for _ in range(length // 200):
        size = int(generator.integers(10, 60))
        source, place = generator.integers(0, length - size, 2)
        tokens[place : place + size] = tokens[source : source + size]
    return tokens


def microseconds(speculator: SuffixSpeculator, tokens: np.ndarray, count: int) -> list[float]:
    """Quartiles of a call's time."""
    generator = np.random.default_rng(1)
    seconds = []
    for cut in generator.integers(len(tokens) // 2, len(tokens), count):
        begin = time.perf_counter()
        speculator.continue_text(tokens[:cut], NUM_DRAFTS, key=1 << 40)
        seconds.append(time.perf_counter() - begin)
    return [round(float(q) * 1e6, 1) for q in np.quantile(seconds, [0.25, 0.5, 0.75])]


def main() -> None:
    """Times own text alone and with 2,000 past outputs of 400 tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few calls")
    count = 20 if parser.parse_args().quick else 400
    generator = np.random.default_rng(0)
    outputs = [text(generator, 400).tolist() for _ in range(5 * count)]
    past = PastOutputs(len(outputs))
    begin = time.perf_counter()
    for key, output in enumerate(outputs):
        past.add(key, output)
    per_token = (time.perf_counter() - begin) / past.num_tokens * 1e6
    rows = []
    for length in (500, 4_000, 32_768, 131_072):
        tokens = text(generator, length)
        own = microseconds(SuffixSpeculator(NUM_DRAFTS), tokens, count)
        both = microseconds(SuffixSpeculator(NUM_DRAFTS, past=past), tokens, count)
        rows.append({"length": length, "own_us": own, "with_past_us": both})
        print(f"{length:7,} tokens: {own[1]} us a row and round, {both[1]} with past outputs")
    tracemalloc.start()
    held = PastOutputs(len(outputs))
    for key, output in enumerate(outputs[:200]):
        held.add(key, output)
    kept = tracemalloc.get_traced_memory()[0] / held.num_tokens
    document = {"conditions": conditions(), "rows": rows, "add_us_per_token": round(per_token, 2)}
    print(json.dumps(document | {"bytes_per_token": round(kept)}))


if __name__ == "__main__":
    main()
