"""Options that several commands share, with vLLM's names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairdraft.cli.speculation import METHODS

SAMPLING = "Sampling"
SPECULATION = "Speculation"
INPUT = "Input and output"
ENGINE = "Engine"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Target: a folder in Hugging Face format, a cached name, 'pocket' or 'smollm2'.",
        show_default=True,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="Draft model or folder of a head; 'pocket' drafts with 'pocket-draft' unless told "
        "otherwise.",
        metavar="MODEL",
        rich_help_panel=SPECULATION,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        help=f"Speculator: {', '.join(METHODS[:-1])}, or {METHODS[-1]}, which measures what is at "
        "hand and takes the fastest.",
        metavar="NAME",
        rich_help_panel=SPECULATION,
    ),
]
SpeculativeJson = Annotated[
    str | None,
    typer.Option(
        "--speculative-config",
        help="""vLLM's dictionary, e.g. '{"method": "ngram", "prompt_lookup_max": 4}'. """
        '"rejection_sample_method" is standard, block or common_noise (text as without drafts); '
        '"speculative_token_tree", e.g. [3, 2, 1], drafts several candidates for a token; '
        'typical, threshold and synthetic are lossy and ask for "allow_lossy": true.',
        metavar="JSON",
        rich_help_panel=SPECULATION,
    ),
]
NumSpeculativeTokens = Annotated[
    int | None,
    typer.Option(
        "--num-speculative-tokens",
        "-k",
        help="Drafts a round; 4 unless told otherwise.",
        metavar="K",
        rich_help_panel=SPECULATION,
    ),
]
Temperature = Annotated[
    float, typer.Option(help="0 is greedy.", metavar="T", rich_help_panel=SAMPLING)
]
TopK = Annotated[
    int, typer.Option(help="Keep the k best tokens; 0 is off.", rich_help_panel=SAMPLING)
]
TopP = Annotated[
    float, typer.Option(help="Keep a nucleus of this mass; 1 is off.", rich_help_panel=SAMPLING)
]
MinP = Annotated[
    float,
    typer.Option(
        help="Drop tokens below this share of the best; 0 is off.", rich_help_panel=SAMPLING
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Any integer, -1 too. Without it the operating system gives noise.",
        rich_help_panel=SAMPLING,
    ),
]
NoiseKey = Annotated[
    str | None,
    typer.Option(
        help="Replay the response that returned this key.", metavar="HEX", rich_help_panel=SAMPLING
    ),
]
NumSamples = Annotated[
    int, typer.Option("--n", "-n", help="Samples a prompt.", rich_help_panel=SAMPLING)
]
MaxTokens = Annotated[
    int, typer.Option(help="Most tokens to emit a sample.", rich_help_panel=SAMPLING)
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        help="End the text at this string; may be given again.",
        metavar="TEXT",
        rich_help_panel=SAMPLING,
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the end token.", rich_help_panel=SAMPLING)
]
SamplingJson = Annotated[
    str | None,
    typer.Option(
        "--sampling-params",
        help="""Penalties, bias, masks and grammars, e.g. '{"repetition_penalty": 1.1}'.""",
        metavar="JSON",
        rich_help_panel=SAMPLING,
    ),
]
Prompt = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt",
        "-p",
        help="Text to continue; may be given again.",
        metavar="TEXT",
        rich_help_panel=INPUT,
    ),
]
PromptFile = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        "-f",
        help="File with one prompt, '-' for standard input; may be given again.",
        metavar="PATH",
        rich_help_panel=INPUT,
    ),
]
Lines = Annotated[
    bool,
    typer.Option("--lines", help="Each line of the input is a prompt.", rich_help_panel=INPUT),
]
Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="Ask each prompt in the target's chat template, or continue it as it is: 'smollm2' "
        "is asked unless told otherwise.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document and nothing else.", rich_help_panel=INPUT),
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain",
        help="Decode without speculation too, in turns, and compare.",
        rich_help_panel=INPUT,
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="Folder of the tokenizer, if not the target's.", metavar="PATH", rich_help_panel=ENGINE
    ),
]
Dtype = Annotated[
    str,
    typer.Option(help="float32, bfloat16, float16, float64, or auto.", rich_help_panel=ENGINE),
]
Device = Annotated[str, typer.Option(help="Where the models compute.", rich_help_panel=ENGINE)]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads of torch; 1 for a small model unless told otherwise.",
        min=1,
        rich_help_panel=ENGINE,
    ),
]
MaxNumSeqs = Annotated[
    int, typer.Option(help="Most samples in a batch at once.", rich_help_panel=ENGINE)
]
MaxModelLen = Annotated[
    int | None, typer.Option(help="Context limit below the model's own.", rich_help_panel=ENGINE)
]
Impl = Annotated[
    str,
    typer.Option(
        help="Backend of the ops: auto, reference, cpu or triton.", rich_help_panel=ENGINE
    ),
]
EnforceEager = Annotated[
    bool,
    typer.Option(
        "--enforce-eager",
        help="On CUDA, run rounds without replaying graphs of them.",
        rich_help_panel=ENGINE,
    ),
]
