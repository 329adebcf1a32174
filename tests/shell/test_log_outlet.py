"""The queue in front of standard error."""

from __future__ import annotations

import fcntl
import os
import re

from live_process import eventually

from kvwatch.daemon.log_outlet import LogOutlet

PIPE_BYTES = 4096


def test_what_is_written_arrives_in_order():
    read, write = os.pipe()
    outlet = LogOutlet(write)
    for number in range(100):
        outlet.write(f"line {number}\n")
    outlet.drain(5.0)
    assert os.read(read, 65536).decode() == "".join(f"line {number}\n" for number in range(100))
    assert outlet.dropped == 0
    os.close(read)


def test_lines_nobody_reads_are_dropped_counted_and_owned_up_to():
    """The pipe takes 4 KiB, the queue 1000 lines; of 3000 lines of 100 bytes at least 1900 are lost."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    outlet = LogOutlet(write)
    for _ in range(3000):
        outlet.write("x" * 99 + "\n")
    lost = outlet.dropped
    assert 1900 <= lost <= 2000
    os.set_blocking(read, False)
    seen = bytearray()

    def drained():
        try:
            seen.extend(os.read(read, 65536))
        except BlockingIOError:
            return not outlet._queue.unfinished_tasks
        return False

    assert eventually(drained)
    said = re.findall(rb"kvwatch: (\d+) log lines could not be written\n", seen)
    assert sum(map(int, said)) == lost
    assert seen.count(b"x" * 99 + b"\n") == 3000 - lost


def test_a_descriptor_that_fails_loses_lines_and_nothing_else():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        outlet = LogOutlet(full.fileno())
        outlet.write("one\n")
        outlet.write("two\n")
        outlet.drain(5.0)
        assert outlet.dropped == 2


def test_draining_gives_up_in_time(seconds):
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    outlet = LogOutlet(write)
    for _ in range(100):
        outlet.write("x" * 99 + "\n")
    assert seconds(lambda: outlet.drain(0.2)) < 20.0
    os.close(read)


def test_a_line_beyond_all_measure_is_cut():
    read, write = os.pipe()
    outlet = LogOutlet(write)
    outlet.write("y" * 100_000 + "\n")
    outlet.drain(5.0)
    assert os.read(read, 200_000) == b"y" * 16384 + b"\n"
    os.close(read)
