"""Samples raw texts from the teacher.

python -m train.pocket.corpus raw.jsonl --seconds 150
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from train.pocket.data import write_documents
from train.pocket.prompts import Prompt, draw_prompts
from train.pocket.teacher import Decoder, Sampling, load_teacher

MAX_PROMPT = 72


def chat(prompt: Prompt) -> str:
    """The prompt in the teacher's chat format, without a system message."""
    begin = f"<|im_start|>user\n{prompt.instruction}<|im_end|>\n<|im_start|>assistant\n"
    return begin + prompt.opening


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--teacher", type=Path, help="its GGUF file, if it is not installed")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--prompts", type=int, default=250_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--length", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="JSON file for counts and rates")
    args = parser.parse_args()
    begin = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model, tokenizer = load_teacher(args.teacher, dtype)
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
    decoded = tokenizer.backend_tokenizer.decode_batch(list(texts.values()))
    pairs = zip(texts, decoded, strict=True)
    rows = ({**vars(prompts[number]), "text": text} for number, text in pairs)
    write_documents(args.output, rows)
    report = {
        "tokens_fed": fed,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(fed / seconds),
        "texts": len(texts),
        "bytes": sum(map(len, decoded)),
        "sampling": vars(Sampling()),
        "batch": args.batch,
        "length": args.length,
    }
    print(json.dumps(report))
    if args.report:
        args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
