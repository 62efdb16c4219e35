"""Writes the tables and samples of docs/pocket.md from the results, between its markers.

python -m train.pocket.tables train/pocket/results docs/pocket.md
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def shape_table(results: Path) -> str:
    """Cost and short-run loss of each target shape."""
    timing = json.loads((results / "timing.json").read_text(encoding="utf-8"))["threads_1"]
    sweep = {
        record["name"]: record["points"][-1]
        for record in json.loads((results / "sweep.json").read_text(encoding="utf-8"))
    }
    lines = [
        "| shape | parameters | MB in bf16 | ms a token | loss of the short run | loss x ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in timing.items():
        loss = sweep[name][3] if name in sweep else None
        product = f"{loss * row['min_ms']:.2f}" if loss else ""
        lines.append(
            f"| {name} | {row['parameters']:,} | {row['bf16_megabytes']} | {row['min_ms']:.2f} "
            f"| {f'{loss:.3f}' if loss else ''} | {product} |"
        )
    return "\n".join(lines)


def figure_table(results: Path) -> str:
    """The evaluation of the pair."""
    e = json.loads((results / "evaluation.json").read_text(encoding="utf-8"))
    given = ", ".join(f"{value:.3f}" for value in e["acceptance_given_reached"])
    overall = ", ".join(f"{value:.3f}" for value in e["acceptance_of_rounds"])
    rows = [
        ("target, draft parameters", f"{e['target_parameters']:,}, {e['draft_parameters']:,}"),
        ("held-out loss of the target, nats a token", e["target_loss"]),
        ("... in bits a byte", e["target_bits_per_byte"]),
        ("entropy of the target, nats a token", e["target_entropy"]),
        ("held-out loss of the draft, nats a token", e["draft_loss"]),
        ("gap", e["loss_gap"]),
        ("KL(p, q), nats a token", e["kl"]),
        ("sum of min(p, q) over held-out text", e["overlap"]),
        ("**acceptance length, K = 4, temperature 1**", f"**{e['acceptance_length']}**"),
        ("... in closed form along the same rounds", e["acceptance_length_closed_form"]),
        ("acceptance of draft 1 to 4, given that it is reached", given),
        ("share of rounds that accept draft 1 to 4", overall),
        ("prompts, rounds, tokens", f"{e['num_prompts']}, {e['num_rounds']:,}, "
         f"{e['num_emitted_tokens']:,}"),
        ("held-out tokens, bytes a token", f"{e['num_tokens']:,}, {e['bytes_a_token']}"),
        ("machine", f"{e['machine']}, torch {e['torch']}, transformers {e['transformers']}"),
    ]  # fmt: skip
    return "\n".join(["| figure | value |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows)])


def samples(results: Path, count: int = 4) -> str:
    """The first sample texts; the prompt is bold."""
    e = json.loads((results / "evaluation.json").read_text(encoding="utf-8"))
    quotes = []
    for sample in e["samples"][:count]:
        text = f"**{sample['prompt'].strip()}** {sample['text'].strip()}"
        quotes.append("\n".join(f"> {line}".rstrip() for line in text.splitlines()))
    return "\n\n".join(quotes)


def main() -> None:
    """Replaces what stands between `<!-- name -->` and `<!-- end -->`."""
    results, page = Path(sys.argv[1]), Path(sys.argv[2])
    text = page.read_text(encoding="utf-8")
    parts = {"shapes": shape_table, "figures": figure_table, "samples": samples}
    for name, make in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        content = make(results)
        text = re.sub(pattern, lambda m, c=content: f"{m[1]}{c}\n{m[2]}", text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
