"""`fairdraft generate`: continues prompts and shows where each token came from."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from fairdraft.cli import options
from fairdraft.cli.compiling import compiling_is_said
from fairdraft.cli.failure import EXIT_FAILED, EXIT_INTERRUPTED, UsageFault, guarded
from fairdraft.cli.prompts import DEFAULT_PROMPT, DEFAULT_QUESTION, gather_prompts
from fairdraft.cli.sampling import read_sampling
from fairdraft.cli.speculation import POCKET, SMOLLM2, describe, speculative_config

if TYPE_CHECKING:
    from fairdraft.cli.compare import Comparison
    from fairdraft.cli.screen import Screen
    from fairdraft.cli.session import Job, Run, Session

# options that go to LLM and to SamplingParams under their own names
ENGINE_OPTIONS = (
    *("tokenizer", "dtype", "device", "max_num_seqs", "max_model_len", "impl"),
    "enforce_eager",
)
SAMPLING_OPTIONS = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "noise_key"),
    *("max_tokens", "stop", "ignore_eos"),
)


@guarded
def generate(
    model: options.Model = POCKET,
    draft: options.Draft = None,
    method: options.Method = None,
    speculative_json: options.SpeculativeJson = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    lines: options.Lines = False,
    chat: options.Chat = None,
    plain: options.Plain = False,
    json: options.Json = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    noise_key: options.NoiseKey = None,
    n: options.NumSamples = 1,
    max_tokens: options.MaxTokens = 200,
    stop: options.Stop = None,
    ignore_eos: options.IgnoreEos = False,
    sampling_json: options.SamplingJson = None,
    tokenizer: options.Tokenizer = None,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_model_len: options.MaxModelLen = None,
    impl: options.Impl = "auto",
    enforce_eager: options.EnforceEager = False,
) -> int:
    """Continue prompts, exactly as the target alone would, faster.

    The text goes to stdout, everything else to stderr. Exit codes: 0 done, 1 a
    request failed, 2 unusable input, 70 internal error, 130 interrupted (the
    text so far is kept).
    """
    given = dict(locals())
    from fairdraft.cli.session import Job

    config = speculative_config(
        model,
        draft=draft,
        method=method,
        config_json=speculative_json,
        num_speculative_tokens=num_speculative_tokens,
    )
    is_asked = model == SMOLLM2 if chat is None else chat
    default = DEFAULT_QUESTION if is_asked else DEFAULT_PROMPT
    job = Job(
        model,
        config,
        engine={name: given[name] for name in ENGINE_OPTIONS},
        sampling={name: given[name] for name in SAMPLING_OPTIONS} | read_sampling(sampling_json),
        prompts=gather_prompts(prompt or [], file or [], lines=lines, default=default),
        threads=threads,
        chat=is_asked,
    )
    return carry_out(job, as_json=json, plain=plain)


def carry_out(job: Job, *, as_json: bool, plain: bool) -> int:
    """Runs a job, prints what it gives and returns the exit code."""
    from fairdraft.cli.screen import Screen

    if job.sampling["noise_key"] is not None and len(job.prompts) > 1:
        raise UsageFault(f"--noise-key replays one response; {len(job.prompts)} prompts are given")
    if plain and job.speculative_config is None:
        raise UsageFault("--plain compares with speculation: add --draft MODEL or --method ngram")
    _refuse_no_prediction(job)
    screen = Screen(quiet=as_json)
    what = describe(job.speculative_config)
    screen.note(f"loading {job.model} ({what}) as {job.engine['dtype']} on {job.engine['device']}")
    return _carry_out(job, screen, as_json=as_json, plain=plain)


@compiling_is_said()
def _carry_out(job: Job, screen: Screen, *, as_json: bool, plain: bool) -> int:
    from fairdraft.cli.document import document, dumps
    from fairdraft.cli.session import Session

    session = Session.load(job)
    screen.note(_loaded(session))
    run = _decode(session, screen)
    comparison = None
    interrupted = run.interrupted
    if plain and not interrupted:
        try:
            comparison = _compare(session, screen)
        except KeyboardInterrupt:
            interrupted = True
    if as_json:
        choice = session.llm.choice
        chosen = None if choice is None else choice.as_dict()
        found = document(session.job, run, comparison, session.llm.describe(), chosen)
        sys.stdout.write(dumps(found) + "\n")
        sys.stdout.flush()
    screen.show_table(run, comparison)
    failed = [(i, out) for i, out in enumerate(run.outputs, start=1) if out.error is not None]
    for number, output in failed:
        screen.error(f"prompt {number} of {len(run.outputs)} failed: {output.error}")
    if interrupted:
        screen.note("interrupted")
        return EXIT_INTERRUPTED
    return EXIT_FAILED if failed else 0


def _decode(session: Session, screen: Screen) -> Run:
    from fairdraft.cli.screen import Batch, LiveText

    prompts = session.job.prompts
    single = len(prompts) * session.params.n == 1
    gap = "\n\n" if session.job.chat else ""
    if single and not screen.quiet:
        shown: LiveText | Batch = LiveText(screen, prompts[0] + gap)
    else:
        shown = Batch(screen, len(prompts), gap)
    try:
        run = session.decode(shown)
    except BaseException:
        shown.abandon()
        raise
    shown.close(run)
    return run


def _compare(session: Session, screen: Screen) -> Comparison:
    from fairdraft.cli.compare import NUM_PAIRS, compare
    from fairdraft.ops.arithmetic import GREEDY_TEMPERATURE

    screen.note(f"comparing with plain decoding, {NUM_PAIRS} runs each in turns")
    greedy = session.params.temperature < GREEDY_TEMPERATURE
    return compare(session.generate, session.generate_plain, greedy=greedy)


def _refuse_no_prediction(job: Job) -> None:
    config = job.speculative_config or {}
    if config.get("method") == "prediction" and job.sampling.get("prediction") is None:
        raise UsageFault(
            "method 'prediction' drafts from a text that comes with the request: add "
            """--sampling-params '{"prediction": "TEXT"}', or use --method ngram"""
        )


def _loaded(session: Session) -> str:
    threads = f"{session.num_threads} thread" + ("s" if session.num_threads > 1 else "")
    return f"{session.llm.describe()}\nloaded in {session.load_seconds:.1f} s, {threads}"


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="generate")(generate)
