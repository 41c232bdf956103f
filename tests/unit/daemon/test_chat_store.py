"""Chats kept by the daemon: nobody's are seen by another, and deleting deletes."""

from __future__ import annotations

import random
import stat

import pytest

from swiftlmd.http.chats.store import ChatIsGone, ChatStore


def message(name, text):
    return {"id": name, "parent": None, "role": "user", "text": text}


@pytest.fixture
def store(tmp_path):
    return ChatStore(tmp_path / "chats" / "chats.sqlite3")


def put(store, chat="a", *messages, space="owner", revive=False):
    return store.put(space, chat, {"id": chat, "title": chat}, list(messages), revive)


def test_a_page_asks_only_for_what_is_new_to_it(store):
    first = put(store, "a", message("1", "one"))
    second = put(store, "b", message("1", "two"))
    assert (first, second) == (1, 2)
    put(store, "a", message("2", "three"))
    found = store.changes("owner", second)
    assert [chat["id"] for chat in found.chats] == ["a"]
    assert [one["text"] for one in found.chats[0]["messages"]] == ["one", "three"]
    assert store.changes("owner", found.number).chats == []


def test_spaces_see_nothing_of_each_other(store):
    put(store, "a", message("1", "a secret word"), space="key mum")
    assert store.changes("owner", 0).chats == []
    assert store.search("owner", "secret") == []
    assert len(store.search("key mum", "secret")) == 1
    store.delete("owner", "a")
    assert len(store.search("key mum", "secret")) == 1


@pytest.mark.parametrize(
    "words", ["sonnet", "SONNET", "on", "nórth", '"', "a OR b", "*", "%", "北海"]
)
def test_words_are_found_as_they_stand(store, words):
    put(store, "a", message("1", f"before {words} after"), message("2", "nothing of it"))
    [found] = store.search("owner", words)
    assert found["message"] == "1"
    assert words.lower() in found["text"].lower()


@pytest.mark.parametrize("gone", ["delete", "delete_all", "changed"])
def test_what_was_deleted_is_nowhere_in_the_file(store, tmp_path, gone):
    for number in range(30):
        put(store, f"chat{number}", message("1", f"harmless filling text {number} " * 20))
    put(store, "a", message("1", "xylophonequartz " * 200), message("2", "and more"))
    file = tmp_path / "chats" / "chats.sqlite3"
    assert b"xylophonequartz" in file.read_bytes()
    if gone == "delete":
        store.delete("owner", "a")
    elif gone == "delete_all":
        store.delete_all("owner")
    else:
        put(store, "a", message("1", "another text"))
    for path in file.parent.iterdir():
        assert b"xylophonequartz" not in path.read_bytes()
        assert b"xyl" not in path.read_bytes() or gone == "changed"
    assert store.search("owner", "xylophone") == []


def test_a_deleted_chat_stays_deleted_until_it_is_wanted_back(store):
    put(store, "a", message("1", "one"))
    since = store.delete("owner", "a")
    assert store.changes("owner", since - 1).chats == [{"id": "a", "gone": True}]
    with pytest.raises(ChatIsGone):
        put(store, "a", message("1", "one"))
    put(store, "a", message("1", "one"), revive=True)
    assert store.changes("owner", since).chats[0]["messages"][0]["text"] == "one"


def test_nobody_else_on_the_machine_may_read_them(store, tmp_path):
    put(store, "a", message("1", "one"))
    folder = tmp_path / "chats"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


def test_many_chats_come_in_parts(store, monkeypatch):
    monkeypatch.setattr("swiftlmd.http.chats.store._ANSWER_BYTES", 1000)
    for number in range(9):
        put(store, f"chat{number}", message("1", "x" * 400))
    seen, since, more = [], 0, True
    while more:
        found = store.changes("owner", since)
        seen += [chat["id"] for chat in found.chats]
        since, more = found.number, found.more
    assert seen == [f"chat{number}" for number in range(9)]


@pytest.mark.parametrize("seed", range(5))
def test_random_work_is_as_a_dictionary_would_have_it(store, seed):
    luck = random.Random(seed)
    kept: dict[str, dict[str, str]] = {}
    for _ in range(40):
        chat = luck.choice("abc")
        if luck.random() < 0.25:
            store.delete("owner", chat)
            kept.pop(chat, None)
        else:
            name, text = luck.choice("123"), luck.choice(["apple pie", "plum cake", "fig"])
            put(store, chat, message(name, text), revive=True)
            kept.setdefault(chat, {})[name] = text
    found = {
        chat["id"]: {one["id"]: one["text"] for one in chat["messages"]}
        for chat in store.changes("owner", 0).chats
        if "gone" not in chat
    }
    assert found == kept
    hits = {(one["chat"], one["message"]) for one in store.search("owner", "apple")}
    said = [(chat, name, text) for chat, all_ in kept.items() for name, text in all_.items()]
    assert hits == {(chat, name) for chat, name, text in said if "apple" in text}
