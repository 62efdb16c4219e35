"""Ctrl-C while a round is shown: the text stays whole, nothing twice, nothing lost."""

from __future__ import annotations

import signal
import threading

import pytest

from fairdraft import pocket
from fairdraft.cli.interrupt import deferred_interrupt


def test_interrupt_waits_for_the_end_of_the_block() -> None:
    done = False
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        done = True
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_fault_in_the_block_gives_the_handler_back() -> None:
    with pytest.raises(ZeroDivisionError), deferred_interrupt():
        _ = 1 // 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_are_left_alone() -> None:
    ran = []

    def work() -> None:
        with deferred_interrupt():
            ran.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [True]


@pytest.mark.skipif(
    not (pocket.path("target") / "config.json").is_file(), reason="no embedded models"
)
@pytest.mark.parametrize("stage", ["write", "flush"])
def test_partial_text_is_a_prefix_of_the_whole(cli, monkeypatch, stage: str) -> None:
    """Interrupted in the middle of showing the third round."""
    from fairdraft.cli.paint import Painter

    options = ("generate", "--max-tokens", "40", "--ignore-eos", "--noise-key", "00000000000000ab")
    whole = cli(*options).out
    calls = 0
    usual = getattr(Painter, stage)

    def interrupting(self, *args) -> None:
        nonlocal calls
        calls += 1
        usual(self, *args)
        if calls == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Painter, stage, interrupting)
    result = cli(*options)
    assert result.code == 130
    partial = result.out.removesuffix("\n")
    assert len(partial) > 3 and whole.startswith(partial)
