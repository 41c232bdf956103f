"""The key that an earlier `connect` wrote is used again only while the daemon takes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from swiftlmctl.connect.keys import key_in

GOOD, REVOKED = "sk-" + "g" * 43, "sk-" + "r" * 43


class _Guard(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        good = self.headers["Authorization"] == f"Bearer {GOOD}"
        self.send_response(200 if good else 401)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing in the test's output."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Guard)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_key_that_is_still_good_is_used_again(url: str) -> None:
    assert key_in(f'{{"token": "{GOOD}", "theme": "dark"}}', url) == GOOD
    assert key_in(f"a: {REVOKED}\nb: {GOOD}\n", url) == GOOD


def test_a_revoked_key_or_one_of_another_service_is_not(url: str) -> None:
    assert key_in(f"token: {REVOKED}", url) == ""
    assert key_in("token: swiftlm", url) == ""
    assert key_in(f"token: {GOOD}abc", url) == ""


def test_no_key_is_taken_on_trust_where_nobody_answers() -> None:
    assert key_in(f"token: {GOOD}", "http://127.0.0.1:1") == ""
