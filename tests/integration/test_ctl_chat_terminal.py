"""`chat`, `status` and `load` on a terminal: colours, bars, and what Ctrl-C ends."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from fake_admin import FakeAdmin, Listening, said
from fakes_bin.control import eventually

from swiftlm_proto import messages as m
from swiftlm_proto.paths import under


class Slow(FakeAdmin):
    """Says one word and then nothing, until it is aborted."""

    aborted = False

    async def generate(self, message: m.AdminGenerateRequest) -> AsyncIterator[m.SequenceEvent]:
        yield said("one")[0]
        try:
            await asyncio.sleep(60)
        finally:
            self.aborted = True


class Terminal:
    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.text = ""

    def shows(self, words: str, seconds: float = 60) -> bool:
        deadline = time.monotonic() + seconds
        while words not in self.text and time.monotonic() < deadline:
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if ready:
                try:
                    self.text += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:  # the program has left
                    break
        return words in self.text

    def types(self, words: str) -> None:
        self.text = ""
        os.write(self.master, words.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path, room_path: str) -> Iterator[Open]:
    opened: list[Terminal] = []

    def run(*words: str) -> Terminal:
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "SWIFTLM_HOME": str(tmp_path),
            "SWIFTLM_SERVICE_MANAGER": "none",
            "PYTHONPATH": room_path,
            "TERM": "xterm",
            "COLUMNS": "120",
        }
        opened.append(Terminal([sys.executable, "-m", "swiftlmctl", *words], env))
        return opened[-1]

    yield run
    for each in opened:
        each.close()


def test_interrupt_ends_the_answer_and_not_the_conversation(terminal: Open, tmp_path: Path) -> None:
    admin = Slow()
    with Listening(admin, under(tmp_path).admin_socket):
        chat = terminal("chat")
        assert chat.shows("> ")
        chat.types("hello\n")
        assert chat.shows("one")
        chat.text = ""
        chat.process.send_signal(signal.SIGINT)
        assert chat.shows("> ")
        assert eventually(lambda: admin.aborted)
        chat.types("\x04")
        assert chat.process.wait(30) == 0


def test_interrupt_at_the_prompt_leaves(terminal: Open, tmp_path: Path) -> None:
    with Listening(FakeAdmin(), under(tmp_path).admin_socket):
        chat = terminal("chat")
        assert chat.shows("> ")
        # Between the prompt and its wait for a key Python may miss one; a person presses again.
        deadline = time.monotonic() + 30
        while chat.process.poll() is None and time.monotonic() < deadline:
            chat.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert chat.process.returncode == 0


def test_status_is_watched_live(terminal: Open, tmp_path: Path) -> None:
    with Listening(FakeAdmin(), under(tmp_path).admin_socket):
        watching = terminal("status", "--watch")
        assert watching.shows("61.5 tok/s")
        assert "█" in watching.text
        watching.process.send_signal(signal.SIGINT)  # it would wait for the daemon to come back
        watching.process.wait(30)


def test_load_draws_a_bar(terminal: Open, tmp_path: Path) -> None:
    admin = FakeAdmin()
    admin.events = [
        m.OperationEvent(stage="weights", fraction=0.5),
        m.OperationEvent(done=True, model=admin.daemon.models[0]),
    ]
    with Listening(admin, under(tmp_path).admin_socket):
        loading = terminal("load", "smollm2-135m")
        assert loading.shows("is loaded in")
        assert loading.process.wait(30) == 0


def test_models_are_drawn_as_a_table(terminal: Open, tmp_path: Path) -> None:
    with Listening(FakeAdmin(), under(tmp_path).admin_socket):
        listing = terminal("models")
        assert listing.shows("smollm2-135m")
        assert listing.process.wait(30) == 0
        assert "MODEL" in listing.text
