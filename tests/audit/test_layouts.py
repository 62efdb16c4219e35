"""What each layout shares, what it keeps apart, and that it leaves nothing behind.

Axes: none; draws are listed by hand.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fairdraft import noise
from fairdraft.audit import layouts
from fairdraft.audit.layouts import Layout
from fairdraft.audit.subjects.markov import Decoding, MarkovPair
from fairdraft.audit.subjects.toy import ToySubject
from fairdraft.noise import Address, Stream, Trace, philox4x32

STREAMS = [int(stream) for stream in Stream]
SHARED = {Stream.DRAFT, Stream.RESIDUAL, Stream.BONUS}
ORIGINAL = noise.address
Name = tuple[int, bytes]


def names(at: Address) -> list[Name]:
    """What tells draws apart: key and counter."""
    return [(int(key), row.tobytes()) for key, row in zip(at.key, at.counter, strict=True)]


def grid() -> dict[str, np.ndarray]:
    """Every combination of a few values of each field."""
    values = itertools.product(STREAMS, (7, 8), (5, 6, 7), (5, 6), (0, 1, 2), (0, 1))
    columns = np.array(list(values)).T
    order = ["stream", "key", "position", "anchor", "node", "sample"]
    fields: dict[str, np.ndarray] = dict(zip(order, columns, strict=True))
    fields["key"] = fields["key"].astype(np.uint64)
    return fields


def groups(layout: Layout) -> dict[Name, set[tuple[int, ...]]]:
    """For each address of the grid, the fields that got it."""
    fields = grid()
    rows = np.stack(list(fields.values()), axis=1).tolist()
    found: dict[Name, set[tuple[int, ...]]] = {}
    for name, row in zip(names(layout.address(fields.pop("stream"), **fields)), rows, strict=True):
        found.setdefault(name, set()).add(tuple(row))
    return found


def expected_groups(kept) -> set[frozenset[tuple[int, ...]]]:
    """The grid, grouped by what a layout keeps of each row."""
    rows = np.stack(list(grid().values()), axis=1).tolist()
    found: dict[tuple, set[tuple[int, ...]]] = {}
    for row in rows:
        found.setdefault(kept(*row), set()).add(tuple(row))
    return {frozenset(group) for group in found.values()}


def by_position(stream, key, position, anchor, node, sample):
    return stream, key, position, sample


def shared_by_races(stream, key, position, anchor, node, sample):
    return "race" if stream in SHARED else stream, key, position, sample


def every_field(*fields):
    return fields


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (layouts.coupled, shared_by_races),
        (layouts.salted, by_position),
        (layouts.ours, every_field),
    ],
)
def test_a_layout_shares_what_it_says_and_nothing_else(make, kept) -> None:
    found = groups(make())
    assert {frozenset(group) for group in found.values()} == expected_groups(kept)


def test_independent_names_nothing_twice_and_goes_on_where_it_was() -> None:
    fields = grid()
    stream = fields.pop("stream")
    layout = layouts.independent(key=3)
    first = names(layout.address(stream, **fields))
    state = layout.state()
    second = names(layout.address(stream, **fields))
    assert len(set(first + second)) == 2 * len(stream)
    resumed = layouts.independent(key=3, first=state)
    assert names(resumed.address(stream, **fields)) == second
    assert layout.state() == 2 * len(stream)
    # the count outgrows one field without meeting itself
    late = layouts.independent(key=3, first=(1 << 32) - 2)
    assert len(set(names(late.address(stream, **fields)) + first)) == 2 * len(stream)


def test_a_count_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="first = -1"):
        layouts.independent(first=-1)


def draft_names(make, **options) -> list[Name]:
    """The four drafts of a round that begins at 9."""
    nodes = np.arange(1, 5)
    at = make(**options).address(
        Stream.DRAFT, key=7, position=nodes + 8, anchor=np.full(4, 9), node=nodes
    )
    return names(at)


@pytest.mark.parametrize(("make", "num_names"), [(layouts.salted, 1), (layouts.ours, 4)])
def test_constant_position_is_cured_by_the_node(make, num_names: int) -> None:
    assert len(set(draft_names(make))) == 4
    assert len(set(draft_names(make, constant_position=True))) == num_names


def test_constant_position_moves_nothing_but_drafts() -> None:
    plain, constant = layouts.salted(), layouts.salted(constant_position=True)
    for stream in set(Stream) - {Stream.DRAFT}:
        fields = {"key": 7, "position": np.arange(9, 12), "anchor": 9, "node": np.arange(3)}
        assert names(plain.address(stream, **fields)) == names(constant.address(stream, **fields))


def test_a_test_from_the_key_word_reads_the_replacement_key() -> None:
    layout = layouts.salted(accept_from_key=True)
    fields = {"key": 7, "position": np.arange(3)}
    test, race = (layout.address(stream, **fields) for stream in (Stream.ACCEPT, Stream.RESIDUAL))
    words = philox4x32(test.counter, test.key).astype(np.uint64)
    np.testing.assert_array_equal(words[:, 0] << np.uint64(32) | words[:, 1], race.key)
    plain = layouts.salted()
    for stream in set(Stream) - {Stream.ACCEPT}:
        assert names(layout.address(stream, **fields)) == names(plain.address(stream, **fields))


def test_what_ours_refuses_every_layout_refuses() -> None:
    for make in layouts.LAYOUTS.values():
        layout = make()
        with pytest.raises(ValueError, match="anchor = -1"):
            layout.address(Stream.DRAFT, key=1, position=2, anchor=-1)
        with pytest.raises(ValueError, match="key = -1"):
            layout.address(Stream.DRAFT, key=-1, position=2)


@pytest.mark.parametrize("make", layouts.LAYOUTS.values(), ids=layouts.LAYOUTS)
def test_names_own_their_memory(make) -> None:
    """Compiled code asks whether it may write; NumPy warns of that on a broadcast view."""
    at = make().address(
        Stream.BONUS, key=np.arange(3, dtype=np.uint64), position=np.arange(3)[None]
    )
    for part in (at.key, at.counter):
        assert part.flags.writeable
        assert part.flags.c_contiguous


@pytest.mark.parametrize("make", layouts.LAYOUTS.values(), ids=layouts.LAYOUTS)
def test_a_layout_goes_when_its_block_ends(make) -> None:
    with make() as layout:
        assert noise.address == layout.address
    assert noise.address is ORIGINAL
    with pytest.raises(RuntimeError, match="planted"), make():
        raise RuntimeError("planted")
    assert noise.address is ORIGINAL


def test_layouts_do_not_nest() -> None:
    with layouts.coupled() as outer:
        with pytest.raises(ValueError, match="'salted' cannot be"), layouts.salted():
            pass
        assert noise.address == outer.address
    with layouts.salted():
        pass
    assert noise.address is ORIGINAL


def test_a_layout_does_not_cover_another_replacement(monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(noise, "address", lambda *args, **fields: ORIGINAL(*args, **fields))
        with pytest.raises(ValueError, match="replaced already"), layouts.ours():
            pass
    with layouts.ours():
        pass


def played(make, *, rounds: int = 1, **options) -> tuple[Trace, Layout]:
    """A trace of twenty short texts, and the layout that named their draws."""
    pair = MarkovPair.shuffled([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], seed=1)
    subject = ToySubject(pair, Decoding(2), length=1 if rounds == 1 else 8)
    trace = Trace()
    with make(trace=trace, **options) as layout:
        subject.play(0, 20, trace)
    return trace, layout


def colliding_streams(trace: Trace, layout: Layout) -> set[Stream]:
    """What the draws at colliding addresses were for."""
    return {role.stream for c in trace.collisions for role in layout.roles(c.second)}


def test_one_round_collides_under_coupled_alone() -> None:
    for make in (layouts.salted, layouts.independent, layouts.ours):
        trace, _ = played(make)
        assert len(trace) > 40
        trace.check()
    trace, layout = played(layouts.coupled)
    assert colliding_streams(trace, layout) | {Stream.BONUS} == SHARED


def test_several_rounds_are_clean_where_nothing_is_dropped() -> None:
    for make in (layouts.independent, layouts.ours):
        played(make, rounds=4)[0].check()
    assert played(layouts.salted, rounds=4)[0].collisions


def test_a_test_from_the_key_word_needs_a_derived_key() -> None:
    with pytest.raises(ValueError, match="accept_from_key reads the block"):
        layouts.salted(accept_from_key=True, derives_keys=False)


def test_the_derivation_of_a_key_is_a_draw() -> None:
    """One round of `salted` is clean; a test that reads a key's block meets its derivation."""
    trace, _ = played(layouts.salted, accept_from_key=True)
    assert trace.collisions
    assert {collision.first.stream for collision in trace.collisions} == {Stream.RESIDUAL}
