"""`fairdraft audit engine`: our engine on real checkpoints, scored with its own logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from fairdraft.cli import options
from fairdraft.cli.audit import run_options
from fairdraft.cli.compiling import compiling_is_said
from fairdraft.cli.failure import UsageFault, guarded
from fairdraft.cli.speculation import POCKET, describe, speculative_config

if TYPE_CHECKING:
    from fairdraft.cli.audit.run import Order

__all__ = ["engine", "register"]

ENGINE_OPTIONS = ("tokenizer", "dtype", "device", "max_num_seqs", "max_model_len", "impl")


@guarded
def engine(
    model: options.Model = POCKET,
    draft: options.Draft = None,
    method: options.Method = None,
    speculative_json: options.SpeculativeJson = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    lines: options.Lines = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: run_options.FirstSeed = 0,
    num_tokens: run_options.NumTokens = 64,
    eps: run_options.Eps = 0.01,
    alpha: run_options.Alpha = 1e-3,
    delta: run_options.Delta = 0.01,
    max_tokens: run_options.MaxTokens = 1_000_000,
    max_minutes: run_options.MaxMinutes = None,
    state: run_options.State = None,
    html: run_options.Html = None,
    json: run_options.Json = False,
    tokenizer: options.Tokenizer = None,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_model_len: options.MaxModelLen = None,
    impl: options.Impl = "auto",
) -> int:
    """Audit the engine: does speculation leave the target's law as it is?

    Tokens are scored with the logits that the engine verified them by. At
    temperature 0 the verdict is by token identity with plain decoding. Exit
    codes: 0 PASS, 1 FAIL, 3 INCONCLUSIVE, 4 INVALID, 2 unusable input, 70
    internal error, 130 interrupted (what was scored is kept, and the audit goes
    on from its state file).
    """
    given = dict(locals())
    from fairdraft.cli.audit.run import Order, check_order, notes_console

    config = speculative_config(
        model,
        draft=draft,
        method=method,
        config_json=speculative_json,
        num_speculative_tokens=num_speculative_tokens,
    )
    if config is not None and config.get("method") == "prediction":
        raise UsageFault(
            "method 'prediction' drafts what a request predicts, and the texts of an audit predict "
            "nothing, so no draft would be judged; --method suffix drafts alike"
        )
    texts = run_options.texts(prompt, file, lines)
    order = Order.of(given)
    check_order(order)
    what = f"loading {model} ({describe(config)}) as {dtype} on {device}"
    notes_console().print(what, style="dim", soft_wrap=True)
    return _audit(given, config, texts, order)


@compiling_is_said()
def _audit(
    given: dict[str, Any], config: dict[str, Any] | None, texts: list[str] | None, order: Order
) -> int:
    import transformers

    from fairdraft.cli.audit.run import deliver, notes_console, run_subject
    from fairdraft.cli.loading import load_llm
    from fairdraft.engine import SamplingParams
    from fairdraft.ops.arithmetic import GREEDY_TEMPERATURE

    transformers.logging.set_verbosity_error()
    sampling = {name: given[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
    # the end of a text is ignored, so that all are of one length
    params = SamplingParams(ignore_eos=True, **sampling)
    engine = {name: given[name] for name in ENGINE_OPTIONS}
    llm = load_llm(given["model"], config, engine, given["threads"])
    notes_console().print(llm.describe(), style="dim", soft_wrap=True)
    num_tokens = given["num_tokens"]
    if params.temperature < GREEDY_TEMPERATURE:
        from fairdraft.audit.subjects.engine_exact import compare_engine

        say = notes_console().print
        report = compare_engine(llm, texts, params, num_tokens=num_tokens, on_progress=say)
        return deliver(report, order)
    from fairdraft.audit.subjects.engine import EngineSubject

    num_requests = max(1, llm.engine.rows.max_rows // 2)
    subject = EngineSubject(llm, texts, params, num_tokens=num_tokens, num_requests=num_requests)
    return run_subject(subject, order)


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="engine")(engine)
