"""The control connection between the leader and one follower: JSON messages over TCP.

Both ends prove that they hold the group's secret before either reads anything else. What follows
is neither encrypted nor signed, like the tensors of MLX's own back ends: a cluster's network must
be one that its owner trusts.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

_LENGTH = struct.Struct(">I")
_MAX_GREETING = 1024
_MAX_MESSAGE = 64 << 20
_SHORTEST_S = 0.001  # no time at all would mean: do not wait, and say so in another way
GREETING_S = 10.0  # for a stranger to prove itself
MIN_SECRET_BYTES = 16
MAX_RANKS = 64  # of one group

Message = dict[str, Any]  # JSON; each kind is written and read in one place


class LinkLost(Exception):
    """The other end is gone, silent, or not of this group."""


class Stranger(LinkLost):
    """The other end is there, and holds another secret or none."""

    def __init__(self) -> None:
        super().__init__("does not know the group's secret")


def read_secret(path: Path) -> bytes:
    """Raises `LinkLost` when others could read the file, or it holds too little."""
    try:
        mode = path.stat().st_mode
        secret = path.read_bytes().strip()
    except OSError as error:
        raise LinkLost(f"the group's secret cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise LinkLost(f"{path} can be read by others; `chmod 600 {path}`")
    if len(secret) < MIN_SECRET_BYTES:
        raise LinkLost(f"{path} holds fewer than {MIN_SECRET_BYTES} bytes")
    return secret


class Link:
    """`send` may be called from any thread, `receive` from one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()  # a message's bytes stay together
        self._until: float | None = None  # only while both ends greet: then one thread has it all

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def own_host(self) -> str:
        """This end's address, on the interface that reaches the other."""
        return str(self._connection.getsockname()[0])

    def send(self, message: Message) -> None:
        self.send_bytes(json.dumps(message).encode())

    def receive(self) -> Message:
        """Waits for the time-out of the connection at most; raises `LinkLost`."""
        return self._receive(_MAX_MESSAGE)

    def send_bytes(self, body: bytes | bytearray) -> None:
        try:
            with self._sending:
                self._connection.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise LinkLost(f"cannot be reached: {error}") from error

    def receive_bytes(self, limit: int) -> bytearray:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > limit:
            raise LinkLost(f"sent a message of {length} bytes, which no swiftlm does")
        return self._read(length)

    def set_timeout(self, seconds: float) -> None:
        self._connection.settimeout(seconds)

    def close(self) -> None:
        self._connection.close()

    def _receive(self, limit: int) -> Message:
        try:
            message = json.loads(self.receive_bytes(limit))
        except (ValueError, RecursionError) as error:  # the latter: [[[[...
            raise LinkLost("sent no JSON") from error
        if not isinstance(message, dict):
            raise LinkLost("sent no message")
        return message

    def _read(self, count: int) -> bytearray:
        body, read = bytearray(count), 0
        view = memoryview(body)
        while read < count:
            if self._until is not None:
                self.set_timeout(max(_SHORTEST_S, self._until - time.monotonic()))
            try:
                part = self._connection.recv_into(view[read:])
            except TimeoutError as error:
                raise LinkLost("was silent for too long") from error
            except OSError as error:
                raise LinkLost(f"broke off: {error}") from error
            if not part:
                raise LinkLost("closed the connection")
            read += part
        return body

    # -- who is there; the time-out of the connection is for all of it, not for each byte

    def greet_follower(self, secret: bytes) -> None:
        """The leader's side. Raises `LinkLost` for a stranger, who learns nothing but a nonce."""
        self._ask_proof(secret, "leader", "follower")

    def greet_leader(self, secret: bytes) -> None:
        """The follower's side; raises `LinkLost` for a stranger."""
        self._give_proof(secret, "leader", "follower")

    def greet_visitor(self, secret: bytes, admit: Callable[[], str] = lambda: "") -> None:
        """The side of an agent, which waits for its leader; as `greet_follower`.

        `admit` is asked once the visitor has proven itself, and says why it cannot come in now.
        """
        self._ask_proof(secret, "agent", "visitor", admit)

    def greet_agent(self, secret: bytes) -> None:
        """The side of a leader that looks after a host; as `greet_leader`."""
        self._give_proof(secret, "agent", "visitor")

    def _ask_proof(
        self, secret: bytes, listener: str, caller: str, admit: Callable[[], str] = lambda: ""
    ) -> None:
        own = secrets.token_hex(32)
        with self._hurried():
            self.send({"nonce": own})
            greeting = self._receive(_MAX_GREETING)
            other = str(greeting.get("nonce", ""))
            if not _proves(greeting, secret, caller, own, other):
                self.send({"proof": ""})  # so that an honest caller hears why
                raise Stranger
            refusal = admit()
            self.send({"proof": _proof(secret, listener, own, other), "refusal": refusal})
            if refusal:
                raise LinkLost("was turned away")

    def _give_proof(self, secret: bytes, listener: str, caller: str) -> None:
        own = secrets.token_hex(32)
        with self._hurried():
            other = str(self._receive(_MAX_GREETING).get("nonce", ""))
            self.send({"nonce": own, "proof": _proof(secret, caller, other, own)})
            answer = self._receive(_MAX_GREETING)
            if not _proves(answer, secret, listener, other, own):
                raise Stranger
            if refusal := str(answer.get("refusal", "")):
                raise LinkLost(f"says: {refusal}")

    @contextmanager
    def _hurried(self) -> Iterator[None]:
        patience_s = self._connection.gettimeout()
        self._until = None if patience_s is None else time.monotonic() + patience_s
        try:
            yield
        finally:
            self._until = None
            self._connection.settimeout(patience_s)


def _proof(secret: bytes, side: str, listener_nonce: str, caller_nonce: str) -> str:
    """Of one side only: no proof can be sent back to who gave it, nor used for another purpose."""
    text = _bytes(f"swiftlm group {side} {listener_nonce} {caller_nonce}")
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def _proves(message: Message, secret: bytes, side: str, listener: str, caller: str) -> bool:
    expected = _proof(secret, side, listener, caller)
    return hmac.compare_digest(_bytes(str(message.get("proof", ""))), expected.encode())


def _bytes(text: str) -> bytes:
    """Of whatever a stranger sends: JSON may hold halves of characters."""
    return text.encode(errors="surrogatepass")
