"""Ctrl-C and SIGTERM in real processes: what is done is acknowledged, the rest is given back, and soon."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Client

MODES = ("ordered", "shared")
SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Handles messages 0 to 2 at once, and 3 when a line comes on standard input; tells what it does.
WORKER = """
import asyncio, logging, sys, threading, time
from penstock import AsyncClient, Client

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
kind, dsn, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])

def say(text):
    print(text, flush=True)

def handler(message):
    if message.offset == 3:
        say("in hand")
        sys.stdin.readline()
    say(f"handled {message.offset}")

async def async_handler(message):
    if message.offset == 3:
        say("in hand")
        await asyncio.to_thread(sys.stdin.readline)
    say(f"handled {message.offset}")

async def deaf_handler(message):
    if message.offset == 3:
        say("in hand")
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                say("not heeded")
    say(f"handled {message.offset}")

async def main(handler):
    async with AsyncClient(dsn) as client:
        try:
            await client.process("q", handler, group="g", **options)
        finally:
            say("unwound")

if kind == "sync":
    with Client(dsn) as client:
        try:
            client.process("q", handler, group="g", **options)
        finally:
            say("unwound")
else:
    asyncio.run(main(deaf_handler if kind == "deaf" else async_handler))
"""

FORKS = """
import multiprocessing, signal, sys, time
from penstock import Client

def handler(message):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join(20)
    print("child", child.exitcode, flush=True)

with Client(sys.argv[2]) as client:
    client.process("q", handler, group="g", idle_timeout=0)
    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""

# Lets signals come to the thread of the handler, as the system may do.
ELSEWHERE = """
import logging, signal, sys, threading
from penstock import Client

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)

def handler(message):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    print("in hand", flush=True)
    threading.Event().wait(600)

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
Client(sys.argv[2]).process("q", handler, group="g", grace=600)
"""

OWN = """
import signal, sys, threading
from penstock import Client

stop = threading.Event()

def end(number, frame):
    print("own handler", flush=True)
    stop.set()

signal.signal(signal.SIGTERM, end)

def handler(message):
    if message.offset == 3:
        print("in hand", flush=True)
        stop.wait(20)

with Client(sys.argv[2]) as client:
    print("returned", client.process("q", handler, group="g", stop=stop), flush=True)
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(dsn: str) -> Iterator[Start]:
    """Starts a worker, and ends it with the test."""
    begun: list[subprocess.Popen[str]] = []

    def start_one(kind: str = "sync", script: str = WORKER, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, kind, dsn, repr(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # A process that was started in the background by a shell ignores Ctrl-C, and so do its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )
        begun.append(process)
        return process

    yield start_one
    for process in begun:
        process.kill()
        process.communicate()


def await_line(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Read what a worker says until a line begins as wanted; return all lines."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if lines[-1].startswith(wanted):
            return lines
    raise AssertionError(f"never said {wanted!r} but {lines}")


def go_on(process: subprocess.Popen[str]) -> str:
    """Let the handler return, and return the rest of what the worker says."""
    return process.communicate("\n", timeout=30)[0]


def exit_code(number: signal.Signals) -> int:
    # Python ends by the signal itself when nobody catches a KeyboardInterrupt.
    return 0 if number == signal.SIGTERM else -signal.SIGINT


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", SIGNALS)
def test_what_is_done_is_acknowledged_and_the_rest_given_back(
    client: Client, start: Start, kind: str, mode: str, number: signal.Signals
) -> None:
    client.create_group("q", "g", mode=mode)
    client.push("q", list(range(10)))
    worker = start(kind)
    await_line(worker, "in hand")
    worker.send_signal(number)
    await_line(worker, "ending")
    said = go_on(worker)
    assert worker.returncode == exit_code(number)
    assert said.split("\n")[:2] == ["handled 3", "unwound"]
    assert (client.claims("q"), client.lag("q", "g")) == ([], 6)
    batch = client.pop("q", "g")
    assert batch
    assert (batch.messages[0].offset, batch.messages[0].attempt) == (4, 1)


@pytest.mark.parametrize("kind", ["sync", "async", "deaf"])
def test_a_handler_that_does_not_end_in_time_is_left_behind(client: Client, start: Start, kind: str) -> None:
    client.push("q", list(range(10)))
    worker = start(kind, grace=0.2)
    await_line(worker, "in hand")
    worker.send_signal(signal.SIGTERM)
    said = await_line(worker, "unwound")
    assert "handled 3" not in said
    assert (client.claims("q"), client.lag("q", "g")) == ([], 7)
    batch = client.pop("q", "g")
    assert batch
    assert (batch.messages[0].offset, batch.messages[0].attempt) == (3, 1)
    if kind == "sync":
        assert worker.wait(20) == 0


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_second_ctrl_c_ends_at_once(client: Client, start: Start, kind: str) -> None:
    client.push("q", list(range(10)))
    worker = start(kind, grace=600)
    await_line(worker, "in hand")
    worker.send_signal(signal.SIGINT)
    await_line(worker, "ending")
    worker.send_signal(signal.SIGINT)
    await_line(worker, "unwound")
    worker.communicate("\n", timeout=30)
    assert worker.returncode == -signal.SIGINT


def test_ctrl_c_that_reaches_another_thread_ends_it_as_well(client: Client, start: Start) -> None:
    client.push("q", list(range(10)))
    worker = start(script=ELSEWHERE)
    await_line(worker, "in hand")
    worker.send_signal(signal.SIGINT)
    await_line(worker, "ending")
    worker.send_signal(signal.SIGINT)
    assert worker.wait(30) != 0


def test_children_of_a_handler_are_ended_by_signals_as_ever_and_handlers_put_back(client: Client, start: Start) -> None:
    client.push("q", 1)
    worker = start(script=FORKS)
    assert worker.communicate(timeout=60)[0].split("\n")[:3] == [f"child {-signal.SIGTERM}", "True", "True"]


def test_a_program_with_a_signal_handler_of_its_own_keeps_it(client: Client, start: Start) -> None:
    client.push("q", list(range(10)))
    worker = start(script=OWN)
    await_line(worker, "in hand")
    worker.send_signal(signal.SIGTERM)
    assert worker.communicate(timeout=60)[0].split("\n")[:2] == ["own handler", "returned 4"]
    assert (worker.returncode, client.claims("q"), client.lag("q", "g")) == (0, [], 6)


def test_ctrl_c_that_is_left_to_python_gives_everything_back_too(client: Client, start: Start) -> None:
    client.push("q", list(range(10)))
    worker = start("sync", handle_signals=False)
    await_line(worker, "in hand")
    worker.send_signal(signal.SIGINT)
    await_line(worker, "ending")
    go_on(worker)
    assert (client.claims("q"), client.lag("q", "g")) == ([], 6)
