"""A recorder leaves whole lines, whatever happens, and loses no bit of a law."""

from __future__ import annotations

import gzip
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fairdraft.audit.recorder import Recorder, record_tokens
from fairdraft.audit.subjects.trace import TraceSubject
from fairdraft.audit.trace_schema import TraceHeader, pack, prompt_hash, unpack
from fairdraft.stats.tokens import REST, ScoredTokens
from tests.audit.traces import documents, header_of, toy

HEADER = TraceHeader(4, {"temperature": 1.0}, sampler="gumbel")
LAW = [0.4, 0.3, 0.2, 0.1]


@contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """No file may grow past a size inside the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def read(path: Path, **options: bool) -> ScoredTokens:
    (batch,) = TraceSubject(path, tokens_per_batch=1 << 20, **options).batches()
    return batch.tokens


def test_lines_hold_what_was_given(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with (
        Recorder(path, HEADER) as recorder,
        recorder.text("a", seed=5, prompt=[7, 8, 9], sample=1) as text,
    ):
        text.token(0, LAW, draft=LAW[::-1], slot=0, source="replaced", drafted=3)
        text.token(1, np.array(LAW, np.float32), source="plain")
    header, first, second = documents(path)
    assert header["schema"] == "fairdraft/trace/1" and header["sampler"] == "gumbel"
    assert first["prompt"] == prompt_hash([7, 8, 9]) and first["before"] == [9, 8]
    assert (first["request"], first["seed"], first["sample"]) == ("a", 5, 1)
    assert (first["position"], second["position"]) == (0, 1)
    assert second["slot"] is None and "before" not in second
    assert unpack(first["draft"]).tolist() == LAW[::-1]
    assert unpack(second["target"]).dtype == np.float32


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_scored_tokens_come_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    subject = toy(temperature=0.8, top_k=5)
    tokens = next(subject.batches()).tokens
    path = tmp_path / name
    with Recorder(path, header_of(subject)) as recorder:
        record_tokens(recorder, tokens)
    back = read(path)
    for field in ScoredTokens.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(back, field), getattr(tokens, field), field)


def test_wide_laws_are_narrowed_and_keep_their_mass(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    size = 1000
    header = TraceHeader(size, {"temperature": 1.0}, eps0=0.0)
    path = tmp_path / "t.jsonl"
    target, draft = (
        generator.dirichlet(np.full(size, 0.05), 20),
        generator.dirichlet(np.full(size, 0.05), 20),
    )
    target[:, 77] = 0
    target /= target.sum(axis=1, keepdims=True)
    with Recorder(path, header, max_columns=64) as recorder, recorder.text(1) as text:
        for row in range(20):
            token = 77 if row == 9 else int(generator.choice(size, p=target[row]))
            has_draft = row % 2 == 0
            text.token(
                token,
                target[row],
                draft=draft[row] if has_draft else None,
                drafted=int(draft[row].argmax()) if has_draft else None,
            )
    back = read(path)
    assert back.num_columns == 64 and back.ids is not None
    np.testing.assert_allclose(back.target.sum(axis=1), 1)
    assert back.has_draft.tolist() == [True, False] * 10
    for row in range(20):
        listed = back.ids[row] != REST
        np.testing.assert_array_equal(back.target[row][listed], target[row][back.ids[row][listed]])
    assert back.token_id[9] == 77 and back.probability[9] == 0
    assert (back.probability[np.arange(20) != 9] > 0).all()


def test_texts_that_grow_together_stand_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Recorder(path, HEADER) as recorder:
        first, second = recorder.text("first"), recorder.text("second")
        for token in range(3):
            second.token(token, LAW, draft=LAW)
            first.token(token, LAW, draft=LAW)
        second.end()
        assert len(documents(path)) == 1 + 3
        first.end()
        assert len(documents(path)) == 1 + 6
        with pytest.raises(ValueError, match="'first' has ended"):
            first.token(0, LAW)
        with pytest.raises(ValueError, match="already"):
            recorder.text("first")
    assert [line["request"] for line in documents(path)[1:]] == ["first"] * 3 + ["second"] * 3


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_full_disk_is_told_and_what_was_written_stays(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    generator = np.random.default_rng(1)
    with pytest.raises(OSError, match="what was written stays") as error, full_disk(40_000):  # noqa: SIM117
        with Recorder(path, HEADER) as recorder:
            for number in range(600):
                with recorder.text(number) as text:
                    law = generator.dirichlet(np.ones(4))
                    text.token(0, law, draft=law)
                recorder.flush()
    assert str(path) in str(error.value)
    assert len(read(path)) > 50


def test_what_could_not_be_written_is_written_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    recorder = Recorder(path, HEADER)
    recorder.flush()
    with recorder.text("a") as text:
        for _ in range(500):
            text.token(0, LAW, draft=LAW)
    with full_disk(300), pytest.raises(OSError):
        recorder.flush()
    with gzip.open(path) as file:
        assert len(file.readlines()) == 1
    recorder.close()
    assert len(read(path)) == 500


def test_a_crash_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    recorder = Recorder(path, HEADER)
    for number in range(300):
        with recorder.text(number) as text:
            text.token(0, np.random.default_rng(number).dirichlet(np.ones(4)), draft=LAW)
        if number == 199:
            recorder.flush()
    # the process ends here, and the last lines with it
    with gzip.open(path) as file:
        lines = file.readlines()
    assert len(lines) == 201 and all(json.loads(line) for line in lines)
    recorder.close()


def test_misuse_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Recorder(path, HEADER) as recorder:
        text = recorder.text("a")
        with pytest.raises(ValueError, match="one number for each of the 4"):
            text.token(0, LAW[:3])
        with pytest.raises(ValueError, match="source is 'kept'"):
            text.token(0, LAW, source="kept")
    with pytest.raises(ValueError, match="is closed"):
        recorder.text("b")
    with pytest.raises(FileExistsError, match="move it away"):
        Recorder(path, HEADER)
    with pytest.raises(ValueError, match="temperature at least"):
        TraceHeader(4, {})
    assert not path.with_name("none").exists()


def test_packed_numbers_keep_their_bits() -> None:
    numbers = np.random.default_rng(0).random(100)
    assert unpack(pack(numbers)).tobytes() == numbers.tobytes()
    small = numbers.astype(np.float32)
    assert unpack(pack(small)).tobytes() == small.tobytes()
    for ids in ([1, -1, 5], [1 << 40]):
        assert unpack(pack(np.array(ids))).tolist() == ids
    assert unpack([0, None])[1] == -np.inf
