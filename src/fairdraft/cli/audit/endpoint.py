"""`fairdraft audit endpoint`: an OpenAI-compatible server, judged from outside."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairdraft.cli import options
from fairdraft.cli.audit import run_options
from fairdraft.cli.failure import UsageFault, guarded

if TYPE_CHECKING:
    from fairdraft.audit.subjects.endpoint import EndpointSubject
    from fairdraft.models import CausalLM

__all__ = ["endpoint", "register"]

SERVER = "Server"
RESCORING = "Rescoring"

Url = Annotated[
    str,
    typer.Option(help="Base URL, the one that ends in /v1.", metavar="URL", rich_help_panel=SERVER),
]
ServedModel = Annotated[
    str | None,
    typer.Option(
        help="Name of the model there; not needed if it is the only one.",
        metavar="NAME",
        rich_help_panel=SERVER,
    ),
]
Speculative = Annotated[
    bool | None,
    typer.Option(
        "--speculative/--plain",
        help="What the server is said to do. If its /metrics page says otherwise: INVALID.",
        show_default=False,
        rich_help_panel=SERVER,
    ),
]
Concurrency = Annotated[
    int, typer.Option(help="Requests at once.", min=1, max=1024, rich_help_panel=SERVER)
]
Timeout = Annotated[
    float, typer.Option(help="Seconds to wait for one text.", rich_help_panel=SERVER)
]
Attempts = Annotated[
    int,
    typer.Option(help="Tries of one request before giving up.", min=1, rich_help_panel=SERVER),
]
Logprobs = Annotated[
    int,
    typer.Option(
        help="Most likely tokens to ask for beside each token; what else there is, is one cell.",
        min=1,
        rich_help_panel=SERVER,
    ),
]
Sampler = Annotated[
    str,
    typer.Option(
        help="How the server samples, if known: gumbel, inverse_cdf, race or unknown.",
        metavar="NAME",
        rich_help_panel=SERVER,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="A local copy of the model: score with it in place of the returned logprobs.",
        metavar="MODEL",
        rich_help_panel=RESCORING,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="A local copy of the draft model: cover the families that need its law.",
        metavar="MODEL",
        rich_help_panel=RESCORING,
    ),
]
Control = Annotated[
    str | None,
    typer.Option(
        help="URL of the same model without speculation: the A/A run, with --target.",
        metavar="URL",
        rich_help_panel=RESCORING,
    ),
]
SAMPLERS = ("gumbel", "inverse_cdf", "race", "unknown")


@guarded
def endpoint(
    url: Url,
    model: ServedModel = None,
    speculative: Speculative = None,
    target: Target = None,
    draft: Draft = None,
    control: Control = None,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    lines: options.Lines = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    logprobs: Logprobs = 20,
    sampler: Sampler = "unknown",
    seed: run_options.FirstSeed = 0,
    num_tokens: run_options.NumTokens = 64,
    concurrency: Concurrency = 32,
    timeout: Timeout = 60.0,
    attempts: Attempts = 6,
    eps: run_options.Eps = 0.01,
    alpha: run_options.Alpha = 1e-3,
    delta: run_options.Delta = 0.01,
    eps0: run_options.Eps0 = None,
    max_tokens: run_options.MaxTokens = 1_000_000,
    max_minutes: run_options.MaxMinutes = None,
    state: run_options.State = None,
    html: run_options.Html = None,
    json: run_options.Json = False,
) -> int:
    """Audit a server with an OpenAI-compatible completions endpoint, from outside.

    Every token is held against the logprobs that came with it. They are the
    model's own law before temperature and filters, so the audit samples at
    temperature 1 without filters; anything else is INVALID, but for temperature
    0, where the verdict is by identity with the most likely token. A key for
    the server is read from FAIRDRAFT_API_KEY. Exit codes: 0 PASS, 1 FAIL, 3
    INCONCLUSIVE, 4 INVALID, 2 unusable input, 70 internal error, 130
    interrupted (what was scored is kept, and the audit goes on from its state
    file).
    """
    given = dict(locals())
    from fairdraft.cli.audit.run import Order, check_order, deliver, notes_console, run_subject

    if sampler not in SAMPLERS:
        raise UsageFault(f"--sampler {sampler} is none of {', '.join(SAMPLERS)}")
    if control is not None and target is None:
        raise UsageFault("--control is the A/A run of a rescored audit; add --target MODEL")
    order = Order.of(given)
    check_order(order)
    if temperature < 0:
        raise UsageFault(f"--temperature {temperature:g} is below 0; pass 1, or 0 for greedy")
    from fairdraft.ops.arithmetic import GREEDY_TEMPERATURE

    if temperature < GREEDY_TEMPERATURE:
        if target is not None or draft is not None:
            raise UsageFault("at temperature 0 nothing is rescored; leave --target and --draft out")
        from fairdraft.audit.subjects.endpoint_exact import compare_endpoint

        say = notes_console().print
        return deliver(compare_endpoint(_subject(given, {}), on_progress=say), order)
    return run_subject(_subject(given, _models(given)), order)


def _models(given: dict[str, Any]) -> dict[str, CausalLM]:
    """The local models, loaded."""
    roles = [role for role in ("target", "draft") if given[role] is not None]
    if not roles:
        return {}
    from fairdraft.cli.audit.run import notes_console

    notes_console().print(f"loading {' and '.join(given[role] for role in roles)}", style="dim")
    import torch
    import transformers

    from fairdraft.models import load_model

    transformers.logging.set_verbosity_error()
    # the server next door needs the other processors
    torch.set_num_threads(1)
    options_ = {"dtype": given["dtype"], "device": given["device"]}
    return {role: load_model(given[role], role=role, **options_) for role in roles}


def _subject(given: dict[str, Any], models: dict[str, CausalLM]) -> EndpointSubject:
    from fairdraft.audit.openai import Patience
    from fairdraft.audit.subjects.endpoint import EndpointRequest, EndpointSubject

    found = run_options.texts(given["prompt"], given["file"], given["lines"])
    texts: dict[str, Any] = {} if found is None else {"prompts": tuple(found)}
    usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    request = EndpointRequest(
        num_logprobs=given["logprobs"],
        max_tokens=given["num_tokens"],
        seed=given["seed"],
        sampling=tuple((k, given[k]) for k, value in usual.items() if given[k] != value),
        **texts,
    )
    shared: dict[str, Any] = {
        # not an option: a report quotes its command line
        "api_key": os.environ.get("FAIRDRAFT_API_KEY"),
        "patience": Patience(given["timeout"], given["attempts"]),
        "concurrency": given["concurrency"],
        "sampler": given["sampler"],
        **models,
    }
    control = None
    if given["control"] is not None:
        control = EndpointSubject(
            given["control"], given["model"], request, speculative=False, **shared
        )
    return EndpointSubject(
        given["url"],
        given["model"],
        request,
        speculative=given["speculative"],
        control=control,
        **shared,
    )


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="endpoint")(endpoint)
