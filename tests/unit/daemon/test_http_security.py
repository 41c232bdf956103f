"""Who may talk to the port, decided from the head of a request alone."""

from __future__ import annotations

import hashlib

import pytest
from aiohttp.test_utils import make_mocked_request

from swiftlmd.config.http import HttpOptions, is_loopback
from swiftlmd.faults import ServiceError
from swiftlmd.http.security import Guard, host_name

KEYS = tuple(hashlib.sha256(key.encode()).hexdigest() for key in ("one", "two"))


def verdict(options: HttpOptions, path: str = "/v1/models", **headers: str) -> int:
    """The status that the guard answers with; 200 when it lets the request pass."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        Guard(options).check(make_mocked_request("GET", path, headers=named))
    except ServiceError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("LOCALHOST:5413", "localhost"),
        ("[::1]:5413", "::1"),
        ("[::1]", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("evil.example:", "evil.example"),
        ("a:b", "a:b"),
    ],
)
def test_the_name_in_a_host_header_is_found(host, name):
    assert host_name(host) == name


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost", "app.localhost"])
def test_loopback_has_many_names(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "evil.localhost.example", ""])
def test_other_names_are_not_loopback(host):
    assert not is_loopback(host)


def test_a_request_without_a_host_is_an_old_probe_not_a_browser():
    assert verdict(HttpOptions()) == 200


def test_on_a_public_address_addresses_pass_and_foreign_names_do_not():
    public = HttpOptions(host="0.0.0.0", api_key_hashes=KEYS)
    assert verdict(public, Host="192.168.1.5:5413", X_Api_Key="one") == 200
    assert verdict(public, Host="evil.example", X_Api_Key="one") == 403


@pytest.mark.parametrize("key", ["one", "two"])
def test_each_of_several_keys_opens(key):
    options = HttpOptions(api_key_hashes=KEYS)
    assert verdict(options, Authorization=f"Bearer {key}") == 200
    assert verdict(options, Authorization=f"bearer  {key}") == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic one", "one", "Bearer onetwo"])
def test_anything_else_does_not_open(header):
    assert verdict(HttpOptions(api_key_hashes=KEYS), Authorization=header) == 401


def test_a_key_may_be_configured_with_the_name_of_its_hash():
    assert (
        verdict(HttpOptions(api_key_hashes=(f"sha256:{KEYS[0].upper()}",)), X_Api_Key="one") == 200
    )


def test_a_wildcard_origin_admits_every_page():
    options = HttpOptions(cors_origins=("*",))
    assert verdict(options, Host="localhost", Origin="https://any.example") == 200


def test_an_origin_of_another_port_is_foreign():
    assert verdict(HttpOptions(), Host="localhost:5413", Origin="http://localhost:3000") == 403


def test_loopback_needs_no_key_and_a_public_address_does():
    HttpOptions(host="127.0.0.1").check()
    HttpOptions(host="::1").check()
    HttpOptions(host="0.0.0.0", api_key_hashes=KEYS).check()
    with pytest.raises(ValueError, match="swiftlmctl keys add"):
        HttpOptions(host="::").check()


@pytest.mark.parametrize(
    ("allowed", "host", "origin", "status"),
    [
        ("ai.example.com:8443", "ai.example.com:8443", "", 200),  # as a browser's bar shows it
        ("ai.example.com", "ai.example.com:443", "https://ai.example.com", 200),
        ("ai.example.com", "ai.example.com", "https://ai.example.com:443", 200),
        ("ai.example.com", "ai.example.com", "http://ai.example.com:8080", 403),
        ("ai.example.com", "other.example.com", "", 403),
    ],
)
def test_names_of_a_proxy_match_with_and_without_their_ports(allowed, host, origin, status):
    more = {"Origin": origin} if origin else {}
    assert verdict(HttpOptions(allowed_hosts=(allowed,)), Host=host, **more) == status
