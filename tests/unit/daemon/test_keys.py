"""Named API keys and the one-time tokens that devices get one for."""

from __future__ import annotations

import hashlib

import pytest

from swiftlmd.config.http import HttpOptions, api_keys, key_hashes
from swiftlmd.config.keys import Keys
from swiftlmd.config.live import LiveConfiguration
from swiftlmd.config.load import ConfigError, load
from swiftlmd.config.settings import Settings
from swiftlmd.faults import ServiceError
from swiftlmd.http.pairing import OFFER_S, Offers
from swiftlmd.http.security import Guard


@pytest.fixture
def configuration(tmp_path):
    path = tmp_path / "config.toml"
    return LiveConfiguration(load(path, {}, {}), {}, {})


@pytest.fixture
def keys(configuration):
    return Keys(configuration)


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time():
    return Time()


def test_a_key_is_kept_as_its_hash_only(keys, configuration) -> None:
    name, key, changes = keys.add("laptop")
    assert (name, keys.names, changes.now) == ("laptop", ["laptop"], ("http.keys",))
    assert key_hashes(configuration.settings) == (hashlib.sha256(key.encode()).hexdigest(),)
    assert key not in configuration.path.read_text()


def test_a_second_device_of_one_name_gets_a_key_of_its_own(keys) -> None:
    assert [keys.add("iPhone")[0] for _ in range(3)] == ["iPhone", "iPhone 2", "iPhone 3"]


@pytest.mark.parametrize("name", ["", "x" * 41, "a\nb"])
def test_a_key_needs_a_name_that_can_be_shown(keys, name) -> None:
    with pytest.raises(ServiceError, match="1 to 40 characters"):
        keys.add(name)


def test_a_removed_key_is_gone_and_an_unknown_one_is_refused(keys, configuration) -> None:
    keys.add("a")
    keys.add("b")
    keys.remove("a")
    assert keys.names == ["b"]
    with pytest.raises(ServiceError, match="no key named 'a'"):
        keys.remove("a")


def test_the_last_key_of_an_open_door_stays(keys, configuration) -> None:
    keys.add("a")
    configuration.set("http.host", "0.0.0.0")
    with pytest.raises(ServiceError, match="the last key"):
        keys.remove("a")
    configuration.set("http.host", "127.0.0.1")
    keys.remove("a")
    assert keys.names == []


def test_a_door_to_the_network_that_lost_its_keys_lets_nobody_in() -> None:
    class Request:
        headers: dict[str, str] = {}  # noqa: RUF012 (never changed)

    network = Guard(HttpOptions(host="0.0.0.0", api_key_hashes=("0" * 64,)))
    network.let_in(())
    assert not network.authorized(Request())
    assert Guard(HttpOptions()).authorized(Request())


def test_a_pairing_token_is_good_once(time) -> None:
    offers = Offers(time)
    token = offers.make()
    offers.take(token)
    with pytest.raises(ServiceError, match="used or out of date"):
        offers.take(token)


def test_a_pairing_token_is_good_for_five_minutes(time) -> None:
    offers = Offers(time)
    token = offers.make()
    time.now += OFFER_S
    with pytest.raises(ServiceError, match="used or out of date"):
        offers.take(token)


def test_only_the_newest_pairing_token_counts(time) -> None:
    offers = Offers(time)
    older, newer = offers.make(), offers.make()
    with pytest.raises(ServiceError):
        offers.take(older)
    offers.take(newer)


@pytest.mark.parametrize("guess", ["", "x", "\ud800"])
def test_without_an_offer_no_token_is_right(time, guess) -> None:
    with pytest.raises(ServiceError) as failure:
        Offers(time).take(guess)
    assert failure.value.status == 403


def test_guesses_at_a_pairing_token_are_few(time) -> None:
    offers = Offers(time)
    token = offers.make()
    for _ in range(10):
        with pytest.raises(ServiceError):
            offers.take("guess")
    with pytest.raises(ServiceError) as failure:
        offers.take(token)
    assert failure.value.status == 429
    time.now += 61
    offers.take(token)


def test_scope_and_expiry_of_a_key_are_kept_with_its_hash(keys, configuration) -> None:
    keys.add("desk", is_admin=True, expires_at=2_000_000_000)
    keys.add("phone")
    found = {key.name: key for key in api_keys(configuration.settings)}
    assert (found["desk"].is_admin, found["desk"].expires_at) == (True, 2_000_000_000)
    assert (found["phone"].is_admin, found["phone"].expires_at) == (False, float("inf"))


@pytest.mark.parametrize("text", ["sha256:0;root", "sha256:0;until=soon", "sha256:0;"])
def test_a_note_of_a_key_that_means_nothing_is_an_error(text) -> None:
    with pytest.raises(ConfigError, match=r"http\.keys, 'x'"):
        api_keys(Settings(http_keys={"x": text}))
