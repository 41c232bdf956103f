"""Who may join a group: both ends prove that they know its secret before they say anything."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from swiftlm_engine.cluster.group import GroupRefused, read_group
from swiftlm_engine.cluster.link import Link, LinkLost, read_secret

SECRET = b"a secret of a group of tests"


def greet(leader_secret, follower_secret):
    """What each side thinks of the other: None, or why not."""
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(5)
    leader, follower = (Link(end) for end in ends)

    def tried(greeting, secret, link):
        try:
            greeting(secret)
        except LinkLost as error:
            link.close()
            return str(error)
        return None

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(tried, leader.greet_follower, leader_secret, leader)
        second = pool.submit(tried, follower.greet_leader, follower_secret, follower)
        outcome = first.result(10), second.result(10)
    leader.close()
    follower.close()
    return outcome


def test_ends_with_one_secret_accept_each_other():
    assert greet(SECRET, SECRET) == (None, None)


def test_ends_with_two_secrets_refuse_each_other():
    by_leader, by_follower = greet(SECRET, SECRET + b"!")
    assert by_leader == "does not know the group's secret"
    assert by_follower is not None


def test_a_follower_refuses_a_leader_that_returns_its_own_proof():
    ends = socket.socketpair()
    with ThreadPoolExecutor(1) as pool, Link(ends[0]) as stranger, Link(ends[1]) as follower:
        joining = pool.submit(follower.greet_leader, SECRET)
        stranger.send({"nonce": "00"})
        stranger.send(stranger.receive())
        with pytest.raises(LinkLost, match="secret"):
            joining.result(5)


def test_an_oversized_greeting_is_refused():
    ends = socket.socketpair()
    with Link(ends[0]) as leader, Link(ends[1]) as stranger:
        stranger.send({"nonce": "0" * 5000})
        with pytest.raises(LinkLost, match="bytes"):
            leader.greet_follower(SECRET)


@pytest.mark.parametrize(("mode", "text"), [(0o640, SECRET), (0o600, b"short")])
def test_a_weak_secret_is_refused(tmp_path, mode, text):
    path = tmp_path / "secret"
    path.write_bytes(text)
    path.chmod(mode)
    with pytest.raises(LinkLost):
        read_secret(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"hosts": ["localhost"]},
        {"hosts": ["studio", "localhost"]},
        {"hosts": ["localhost", "-oProxyCommand=x"], "address": "10.0.0.1"},
        {"hosts": ["localhost", "studio"]},  # cannot reach a loopback address
        {"hosts": ["localhost", "localhost"], "address": "10.0.0.1"},  # would listen for nobody
    ],
    ids=["one host", "remote leader", "an option of ssh", "no address", "no remote host"],
)
def test_a_group_file_that_cannot_work_is_refused(tmp_path, fields):
    path = tmp_path / "group.json"
    path.write_text(json.dumps({"secret_file": "s", **fields}))
    with pytest.raises(GroupRefused):
        read_group(path)
