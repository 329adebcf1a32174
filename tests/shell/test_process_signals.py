"""Signals that are waited for: none is lost in a flood, and the one that ends the process comes first."""

from __future__ import annotations

import signal
import threading

import pytest

from kvwatch.process_signals import STOPPING, received

FLOOD = 5000
"""More than the buffer of a socket holds, one byte each."""


def send(number, times=1):
    """To the thread of the test alone: what earlier tests left running does not hold back the same signals, and would end the process."""
    for _ in range(times):
        signal.pthread_kill(threading.get_ident(), number)


@pytest.mark.parametrize("stop", STOPPING)
@pytest.mark.parametrize("floods", [(0, 0), (FLOOD, 0), (0, FLOOD), (FLOOD, FLOOD)], ids=["alone", "after", "before", "amid"])
def test_the_signal_that_ends_comes_first_and_the_others_once(stop, floods):
    before, after = floods
    with received(*STOPPING, signal.SIGHUP) as signals:
        send(signal.SIGHUP, before)
        send(stop)
        send(signal.SIGHUP, after)
        assert signals.wait(0) is stop
        assert signals.wait(0) is (signal.SIGHUP if any(floods) else None)
        assert signals.wait(0) is None


def test_a_signal_that_is_nobodys_ends_a_wait_and_nothing_else():
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with received(*STOPPING) as signals:
            send(signal.SIGUSR1)
            assert signals.wait(5) is None
            send(signal.SIGTERM)
            assert signals.wait(5) is signal.SIGTERM
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_was_held_back_arrives_when_it_is_taken():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    try:
        send(signal.SIGHUP)
        with received(*STOPPING, signal.SIGHUP) as signals:
            assert signals.wait(5) is signal.SIGHUP
        assert signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
