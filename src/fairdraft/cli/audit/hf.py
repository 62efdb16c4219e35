"""`fairdraft audit hf`: `transformers` generation, plain and assisted, on stock networks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fairdraft.cli import options
from fairdraft.cli.audit import run_options
from fairdraft.cli.failure import UsageFault, guarded
from fairdraft.cli.speculation import NONE, POCKET, POCKET_DRAFT

__all__ = ["hf", "register"]

SPECULATION = options.SPECULATION
#: assisted generation decodes one text at a time
ASSISTED_EPS, PLAIN_EPS = 0.02, 0.01

Draft = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Assistant; 'pocket' is assisted by 'pocket-draft' unless told otherwise, "
        "'none' is plain generation.",
        rich_help_panel=SPECULATION,
    ),
]
PromptLookup = Annotated[
    int,
    typer.Option(
        metavar="K",
        help="Draft so many tokens by prompt lookup, without an assistant.",
        min=0,
        rich_help_panel=SPECULATION,
    ),
]
NumAssistantTokens = Annotated[
    int | None,
    typer.Option(
        "--num-assistant-tokens",
        "-k",
        help="Drafts a round, constant and without a confidence threshold; the library's own "
        "schedule unless told otherwise.",
        metavar="K",
        min=1,
        rich_help_panel=SPECULATION,
    ),
]
Eps = Annotated[
    float | None,
    typer.Option(
        help=f"Largest deviation that passes; {ASSISTED_EPS:g} if assisted, {PLAIN_EPS:g} if "
        "plain, unless told otherwise.",
        rich_help_panel=run_options.LIMITS,
    ),
]
Rescore = Annotated[
    bool,
    typer.Option(
        "--rescore",
        help="Score by a forward over each text in place of the run's scores; plain generation is "
        "audited first, as the A/A run.",
    ),
]


@guarded
def hf(
    model: options.Model = POCKET,
    draft: Draft = None,
    prompt_lookup: PromptLookup = 0,
    num_assistant_tokens: NumAssistantTokens = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    lines: options.Lines = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: run_options.FirstSeed = 0,
    num_tokens: run_options.NumTokens = 64,
    rescore: Rescore = False,
    eps: Eps = None,
    alpha: run_options.Alpha = 1e-3,
    delta: run_options.Delta = 0.01,
    eps0: run_options.Eps0 = None,
    max_tokens: run_options.MaxTokens = 1_000_000,
    max_minutes: run_options.MaxMinutes = None,
    state: run_options.State = None,
    html: run_options.Html = None,
    json: run_options.Json = False,
    dtype: options.Dtype = "float32",
    threads: options.Threads = None,
) -> int:
    """Audit generate of transformers, plain or assisted.

    Tokens are scored with the run's own scores after all processors. At
    temperature 0 the verdict is by token identity with plain generation. Exit
    codes: 0 PASS, 1 FAIL, 3 INCONCLUSIVE, 4 INVALID, 2 unusable input, 70
    internal error, 130 interrupted (what was scored is kept, and the audit goes
    on from its state file).
    """
    given = dict(locals())
    from fairdraft.cli.audit.run import Order, check_order, deliver, notes_console, run_subject

    assistant = _assistant(model, draft, prompt_lookup)
    is_assisted = assistant is not None or prompt_lookup > 0
    default_eps = ASSISTED_EPS if is_assisted else PLAIN_EPS
    order = Order.of(given, eps=default_eps if eps is None else eps)
    check_order(order)
    notes = notes_console()
    notes.print(f"loading {model}, {_described(assistant, prompt_lookup)}, {dtype}", style="dim")
    sampling = {
        **{name: given[name] for name in ("temperature", "top_k", "top_p", "min_p", "num_tokens")},
        "first_seed": seed,
    }
    texts = run_options.texts(prompt, file, lines)
    subject = _load(model, assistant, texts, sampling, given)
    if temperature == 0:
        from fairdraft.audit.subjects.hf_exact import compare_hf

        return deliver(compare_hf(subject), order)
    return run_subject(subject, order)


def _assistant(model: str, draft: str | None, prompt_lookup: int) -> str | None:
    if draft == NONE:
        return None
    if draft is not None and prompt_lookup:
        raise UsageFault("--draft and --prompt-lookup are both given; leave one out")
    if draft is None and model == POCKET and not prompt_lookup:
        return POCKET_DRAFT
    return draft


def _described(assistant: str | None, prompt_lookup: int) -> str:
    if assistant is not None:
        return f"assisted by {assistant}"
    return f"prompt lookup of {prompt_lookup}" if prompt_lookup else "plain"


def _load(
    model: str,
    assistant: str | None,
    texts: list[str] | None,
    sampling: dict[str, Any],
    given: dict[str, Any],
) -> Any:
    import torch
    import transformers

    from fairdraft.audit.subjects.hf import (
        Assistance,
        HFRequest,
        HFSubject,
        default_prompts,
        load_stock,
    )

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(given["threads"] or 1)
    target, tokenizer = load_stock(model, dtype=given["dtype"])
    network = None
    if assistant is not None:
        network, _ = load_stock(assistant, dtype=given["dtype"], role="draft")
    if texts is None:
        vocab_size = target.config.get_text_config(decoder=True).vocab_size
        prompts = default_prompts(tokenizer, vocab_size)
    elif tokenizer is None:
        raise UsageFault(f"{model} has no tokenizer, so text cannot be prompted; leave it out")
    else:
        prompts = [tokenizer(text)["input_ids"] for text in texts]
    count = given["num_assistant_tokens"]
    constant = {} if count is None else {"schedule": "constant", "confidence_threshold": 0.0}
    return HFSubject(
        target,
        network,
        prompts=prompts,
        request=HFRequest(**sampling),
        assistance=Assistance(num_tokens=count, prompt_lookup=given["prompt_lookup"], **constant),
        rescore=given["rescore"],
        names=(model, assistant or ""),
    )


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="hf")(hf)
