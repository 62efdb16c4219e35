"""The compiled kernels on a CUDA device: sizes, graphs and what only a device shows.

`make gpu-test` runs them. Each kind of call is compiled once, which takes seconds: so few shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress, RowError
from fairdraft.ops.sample import Method
from fairdraft.ops.triton import verify
from fairdraft.ops.triton.workspace import Workspace
from fairdraft.ops.verify import Rule
from tests.ops.triton.alike import SAMPLED, VERDICT, assert_equal, assert_near

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
COUNT, DEPTH = 5, 3
VOCAB_SIZES = [151_936, 262_144]
#: of a batch of five; near ties have a chance of 2e-6 a draw
MAX_TIES = 1


both_ways = pytest.mark.parametrize("way", ["few rows", "many rows"])


@pytest.fixture(autouse=True)
def cut_as_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the kernels of large calls where a test asks for many rows."""
    if hasattr(request.node, "callspec") and request.node.callspec.params.get("way") == "many rows":
        monkeypatch.setattr(verify, "FEW_ROWS", 0)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits_of(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits of a wide law on the host, a range of ids masked."""
    x = 3 * torch.randn(shape, generator=generator(seed))
    x[..., 600:2_000] = -torch.inf
    return x.to(dtype)


def fields(count: int, seed: int, stream: Stream = Stream.TARGET) -> DeviceAddress:
    """Addresses on the host; key, position and sample differ from row to row."""
    rng = np.random.default_rng(seed)
    key = torch.from_numpy(rng.integers(-(1 << 63), 1 << 63, count))
    position = torch.from_numpy(rng.integers(0, 1 << 32, count))
    return DeviceAddress(stream, key, position, sample=torch.arange(count))


def on_gpu(at: DeviceAddress) -> DeviceAddress:
    moved = {name: getattr(at, name).cuda() for name in ("key", "position", "sample")}
    return replace(at, **moved)


def to_gpu(call: dict[str, Any]) -> dict[str, Any]:
    moved = {k: v.cuda() if isinstance(v, Tensor) else v for k, v in call.items()}
    return moved | {"impl": "triton"}


def chain_call(vocab_size: int, seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Ragged drafts of a near law; one request of point masses, one forbidden draft, one greedy."""
    target = logits_of(COUNT, DEPTH + 1, vocab_size, seed=seed, dtype=dtype)
    noise = 0.5 * torch.randn(COUNT, DEPTH, vocab_size, generator=generator(seed + 1))
    draft = (target[:, :DEPTH].float() + noise).to(dtype)
    forbidden = torch.zeros(COUNT, DEPTH, dtype=torch.bool)
    forbidden[3, 1] = True
    rng = np.random.default_rng(seed)
    return {
        "target_logits": target,
        "draft_token_ids": draft.argmax(-1),
        "num_draft_tokens": torch.tensor([3, 3, 2, 3, 0]),
        "draft_logits": draft,
        "key": torch.from_numpy(rng.integers(-(1 << 63), 1 << 63, COUNT)),
        "anchor": torch.from_numpy(rng.integers(0, 1 << 31, COUNT)),
        "sample": torch.arange(COUNT),
        "temperature": torch.tensor([1.0, 0.6, 1.0, 1.0, 0.0]),
        "point_mass": torch.tensor([False, False, True, False, False]),
        "forbidden": forbidden,
    }


@pytest.mark.parametrize("method", ["race", "gumbel"])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_samples_equal_the_reference(vocab_size: int, method: Method) -> None:
    """Good, greedy and bad rows in one batch, at the sizes of real vocabularies."""
    logits, at = logits_of(COUNT, vocab_size, seed=1), fields(COUNT, seed=2)
    logits[3, vocab_size - 1] = torch.nan
    temperature = torch.tensor([1.0, 0.5, 0.0, 1.0, 2.0])
    host: dict[str, Any] = {"method": method, "return_stats": method == "race"}
    expected = ops.sample(logits, at, temperature=temperature, impl="reference", **host)
    assert expected.error.tolist() == [0, 0, 0, RowError.NAN, 0]
    device: dict[str, Any] = host | {"temperature": temperature.cuda()}
    got = ops.sample(logits.cuda(), on_gpu(at), arithmetic="portable", **device)
    assert_equal(got, expected, SAMPLED)
    if got.stats is not None and expected.stats is not None:
        assert torch.equal(got.stats.row_sum.cpu(), expected.stats.row_sum)
    if vocab_size == VOCAB_SIZES[0]:
        device["return_stats"] = False
        fast = ops.sample(logits.cuda(), on_gpu(at), arithmetic="fast", **device)
        assert_near(fast, expected, MAX_TIES)


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_filtered_samples_equal_the_reference(vocab_size: int) -> None:
    """Candidates that fit and that do not, rows without filters, greedy and bad ones in a batch."""
    logits, at = logits_of(9, vocab_size, seed=21), fields(9, seed=22)
    logits[1] = logits[1].round()
    logits[7, vocab_size - 1] = torch.nan
    call: dict[str, Any] = {
        "temperature": torch.tensor([1.0, 1.0, 1.0, 0.3, 2.0, 1.0, 0.0, 1.0, 1.0]).double(),
        "top_k": torch.tensor([50, 20, 0, 0, 1_000, 0, 5, 50, 1]),
        "top_p": torch.tensor([0.9, 0.5, 0.9, 1.0, 0.9, 1.0, 0.9, 0.9, 1.0]).double(),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 0.1, 0.01, 0.0, 0.5, 0.0, 0.0]).double(),
    }
    expected = ops.sample(logits, at, return_stats=True, impl="reference", **call)
    moved = {name: value.cuda() for name, value in call.items()}
    options: dict[str, Any] = {"return_stats": True, "arithmetic": "portable"}
    got = ops.sample(logits.cuda(), on_gpu(at), **options, **moved)
    assert_equal(got, expected, SAMPLED)
    assert got.stats is not None and expected.stats is not None
    assert torch.equal(got.stats.row_sum.cpu(), expected.stats.row_sum)


@both_ways
@pytest.mark.parametrize("rule", ["token", "block", "common_noise"])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_chains_equal_the_reference(vocab_size: int, rule: Any, way: str) -> None:
    call = chain_call(vocab_size, seed=3)
    if rule == "common_noise":
        # guesses have no law
        call |= {"draft_logits": None, "point_mass": None}
    expected = ops.verify_chain(**call, rule=rule, impl="reference")
    moved = to_gpu(call)
    got = ops.verify_chain(**moved, rule=rule, arithmetic="portable")
    assert_equal(got, expected, VERDICT)
    assert int(torch.as_tensor(got.num_broken).sum()) == expected.num_broken
    if vocab_size == VOCAB_SIZES[0]:
        fast = ops.verify_chain(**moved, rule=rule, arithmetic="fast")
        assert_near(fast, expected, MAX_TIES)


@both_ways
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_repeats_read_nothing_of_the_call_before(vocab_size: int, rule: Rule, way: str) -> None:
    """Rows of a request race to end its walk: whoever wins, 3,000 times, in poisoned memory."""
    call = chain_call(vocab_size, seed=3)
    expected = ops.verify_chain(**call, rule=rule, impl="reference").token_ids.cuda()
    moved, workspace = to_gpu(call), Workspace("cuda")
    num_wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(3_000):
        workspace.poison()
        got = ops.verify_chain(**moved, rule=rule, arithmetic="portable", workspace=workspace)
        num_wrong += (got.token_ids != expected).any()
    assert num_wrong == 0


@pytest.mark.parametrize("arithmetic", ["fast", "portable"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_request_gets_alone_what_it_gets_in_a_batch(rule: Rule, arithmetic: Any) -> None:
    """Bits of margins too: a call is cut up by its size, and no sum may feel it."""
    count, depth, vocab_size = 96, 3, VOCAB_SIZES[0]
    generator = torch.Generator("cuda").manual_seed(7)
    shape = (count, depth + 1, vocab_size)
    target = torch.randn(shape, generator=generator, device="cuda").mul_(3.0)
    draft = torch.randn((count, depth, vocab_size), generator=generator, device="cuda")
    draft = draft.mul_(0.4).add_(target[:, :-1])
    ids = (draft + torch.randn(draft.shape, generator=generator, device="cuda")).argmax(-1)
    keys = torch.arange(1, count + 1, device="cuda")

    def verdict(rows: slice) -> ops.Verdict:
        return ops.verify_chain(
            target[rows],
            ids[rows],
            torch.full((len(ids[rows]),), depth, device="cuda"),
            draft_logits=draft[rows],
            key=keys[rows],
            anchor=keys[rows],
            rule=rule,
            arithmetic=arithmetic,
        )

    whole = verdict(slice(None))
    assert 0 < int((whole.num_accepted_tokens < depth).sum()) < count
    for b in (*range(12), count - 1):
        solo = verdict(slice(b, b + 1))
        for name in VERDICT:
            assert torch.equal(getattr(solo, name)[0], getattr(whole, name)[b]), (name, b)


@both_ways
@pytest.mark.parametrize("rule", ["token", "block"])
def test_errors_leave_a_workspace_as_it_was(rule: Rule, way: str) -> None:
    """Bad rows, bad numbers, then the good call again in the same memory."""
    workspace = Workspace("cuda")
    call = chain_call(VOCAB_SIZES[0], seed=4)
    options: dict[str, Any] = {"rule": rule, "arithmetic": "portable", "workspace": workspace}
    good: dict[str, Any] = to_gpu(call) | options
    first = ops.verify_chain(**good)
    bad: dict[str, Any] = to_gpu(call) | options
    bad["target_logits"][0, 0, 5] = torch.nan
    bad["draft_logits"][1, 0, 5] = torch.inf
    bad["temperature"][2] = -1.0
    bad["anchor"][3] = -1
    got = ops.verify_chain(**bad)
    kinds = [RowError.NAN, RowError.DRAFT, RowError.PARAMETER, RowError.ADDRESS, 0]
    assert got.error.tolist() == kinds
    again = ops.verify_chain(**good)
    for name in VERDICT:
        assert torch.equal(getattr(again, name), getattr(first, name)), name


def test_more_elements_than_an_int32_counts() -> None:
    """3,600 x 4 x 151,936 logits in bfloat16 are 4.4 GB; the last requests lie past 2^31."""
    vocab_size, count = VOCAB_SIZES[0], 3_600
    assert (count - 2) * (DEPTH + 1) * vocab_size > 1 << 31
    small = chain_call(vocab_size, seed=5, dtype=torch.bfloat16)
    # requests repeat the first five, so that the host holds those alone
    index = torch.arange(count) % COUNT
    call: dict[str, Any] = {k: v.cuda()[index.cuda()] for k, v in small.items()}
    call["key"] += torch.arange(count, device="cuda")
    got = ops.verify_chain(**call, arithmetic="portable", impl="triton")
    last = torch.arange(count - COUNT, count)
    host: dict[str, Any] = {k: v[index[last]] for k, v in small.items()}
    host["key"] = call["key"][last.cuda()].cpu()
    expected = ops.verify_chain(**host, impl="reference")
    tail = {name: getattr(got, name)[-COUNT:] for name in VERDICT}
    assert_equal(replace(got, **tail), expected, VERDICT)
    flat = call["target_logits"].view(-1, vocab_size)
    at = fields(len(flat), seed=6)
    ones = torch.ones(len(flat), device="cuda")
    drawn = ops.sample(flat, on_gpu(at), temperature=ones, arithmetic="portable")
    wanted = ops.sample(flat[-4:].cpu(), at.to_host(len(flat))[-4:], impl="reference")
    assert torch.equal(drawn.token_ids[-4:].cpu(), wanted.token_ids)


def captured(function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of the call, which ran before so that everything is compiled."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def test_a_graph_of_samples_draws_anew_at_every_replay() -> None:
    logits = logits_of(COUNT, VOCAB_SIZES[0], seed=7).cuda()
    at, workspace = on_gpu(fields(COUNT, seed=8)), Workspace("cuda")
    temperature = torch.ones(COUNT, device="cuda")
    out = ops.sample(logits, at, temperature=temperature)
    own: dict[str, Any] = {"out": out, "workspace": workspace}
    graph, _ = captured(lambda: ops.sample(logits, at, temperature=temperature, **own))
    assert isinstance(at.position, Tensor) and isinstance(at.key, Tensor)
    seen = []
    for step in range(3):
        at.position.fill_(100 + step)
        at.key.add_(step)
        graph.replay()
        seen.append(out.token_ids.clone())
        eager = ops.sample(logits, at, temperature=temperature)
        for name in SAMPLED:
            assert torch.equal(getattr(out, name), getattr(eager, name)), name
    assert not torch.equal(seen[0], seen[1])


def test_a_graph_of_filtered_samples_reads_the_filters_at_every_replay() -> None:
    """Numbers of tokens that no buffer holds are searched for; nothing is allocated."""
    logits = logits_of(COUNT, VOCAB_SIZES[0], seed=23).cuda()
    at, workspace = on_gpu(fields(COUNT, seed=24)), Workspace("cuda")
    top_k = torch.full((COUNT,), 50, device="cuda")
    own: dict[str, Any] = {"top_k": top_k, "top_p": 0.9, "workspace": workspace}
    out = ops.sample(logits, at, **own)
    before = num_allocations()
    ops.sample(logits, at, out=out, **own)
    assert num_allocations() == before
    graph, _ = captured(lambda: ops.sample(logits, at, out=out, **own))
    for k in (50, 0, 2, 3_000):
        top_k.fill_(k)
        graph.replay()
        eager = ops.sample(logits, at, top_k=k, top_p=0.9)
        for name in SAMPLED:
            assert torch.equal(getattr(out, name), getattr(eager, name)), (k, name)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_graph_of_chains_follows_what_the_device_holds(rule: Rule) -> None:
    """Counts, keys, anchors and temperatures change between replays; one of them is an error."""
    call: dict[str, Any] = to_gpu(chain_call(VOCAB_SIZES[0], seed=9)) | {"rule": rule}
    workspace = Workspace("cuda")
    graph, verdict = captured(lambda: ops.verify_chain(**call, workspace=workspace))
    for step in range(4):
        call["key"].add_(step)
        call["anchor"].fill_(-1 if step == 2 else 50 * step)
        call["num_draft_tokens"].copy_(torch.tensor([step, 3, 1, 3 - step, 2]))
        call["temperature"][0] = 0.5 + step
        graph.replay()
        eager = ops.verify_chain(**call)
        for name in (*VERDICT, "num_broken"):
            assert torch.equal(getattr(verdict, name), getattr(eager, name)), (step, name)
        assert bool(eager.error.any()) == (step == 2)


def num_allocations() -> int:
    return torch.cuda.memory_stats()["allocation.all.allocated"]


@pytest.mark.parametrize(
    ("method", "arithmetic"), [("race", "fast"), ("gumbel", "fast"), ("gumbel", "portable")]
)
def test_a_second_call_allocates_nothing(method: Method, arithmetic: ops.Arithmetic) -> None:
    logits = logits_of(COUNT, VOCAB_SIZES[0], seed=10).cuda()
    at, workspace = on_gpu(fields(COUNT, seed=11)), Workspace("cuda")
    options: dict[str, Any] = {"method": method, "arithmetic": arithmetic, "workspace": workspace}
    options |= {"temperature": torch.ones(COUNT, device="cuda")}
    out = ops.sample(logits, at, **options)
    before = num_allocations()
    ops.sample(logits, at, out=out, **options)
    assert num_allocations() == before


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_calls_do_not_wait_for_the_device() -> None:
    call = to_gpu(chain_call(VOCAB_SIZES[0], seed=12))
    logits, at = call["target_logits"][:, 0], on_gpu(fields(COUNT, seed=13))
    kwargs: dict[str, Any] = {"temperature": call["temperature"]}
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = [ops.sample(logits, at, method=m, **kwargs) for m in ("race", "gumbel")]
        drawn.append(ops.sample(logits, at, top_k=50, top_p=0.9, **kwargs))
        verdicts = [ops.verify_chain(**call, rule=rule) for rule in ("token", "block")]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not any(d.error.any() for d in drawn) and not any(v.error.any() for v in verdicts)


def test_host_implementations_refuse_device_tensors() -> None:
    logits, at = torch.zeros(2, 5, device="cuda"), DeviceAddress(Stream.TARGET, 1, 2)
    with pytest.raises(ValueError, match="reads host memory"):
        ops.sample(logits, at, impl="reference")
    with pytest.raises(ValueError, match="is on cpu|on cpu; give"):
        ops.sample(logits, replace(at, key=torch.zeros(2, dtype=torch.int64)))
