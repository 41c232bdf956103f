"""`connect` and its way back, while the client and its user write to the file as they like.

Invariants: after `--undo` the file is what it would be if `connect` had never been called; what
somebody else put there, before, between or after, is there with its value; a link stays a link;
nothing of ours lies beside the file; a kill at any line loses nothing of the user's.
"""

from __future__ import annotations

import copy
import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killed import at_every_line

from swiftlmctl.connect.clients import Service, named
from swiftlmctl.connect.edits import Unsafe
from swiftlmctl.connect.undo import UndoLedger
from swiftlmctl.errors import CtlError

SERVICES = [Service("http://127.0.0.1:5413", name, 8192) for name in ("one", "two", "three")]
JSON_CLIENTS = ("claude-code", "opencode", "pi", "zed")


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power cut would take is not what these tests are about."""
    monkeypatch.setattr("os.fsync", lambda _: None)


class Home:
    """One client's file below a home of its own, and what `connect` does to it."""

    def __init__(self, root: Path, name: str) -> None:
        found = named(name)
        assert found is not None
        self.client = found
        self.path = found.path(root)
        self.ledger = UndoLedger(root / "state" / "connect")
        self.root = root

    def has(self, text: str | bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(text.encode() if isinstance(text, str) else text)

    def connect(self, service: Service = SERVICES[0]) -> None:
        before = self.ledger.without_ours(self.client.name, self.path)
        text = self.client.edit(before, service)
        self.ledger.write(self.client.name, self.path, text)

    def undo(self) -> tuple[str, ...]:
        return self.ledger.undo(self.client.name, self.path).left

    def undo_if_connected(self) -> None:
        if list((self.root / "state").rglob("*.json")):
            self.undo()

    def left(self) -> list[str]:
        return sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file())


def test_what_was_added_between_two_connects_survives_the_undo(tmp_path: Path) -> None:
    home = Home(tmp_path, "claude-code")
    home.connect(SERVICES[0])
    found = json.loads(home.path.read_text())
    home.has(json.dumps({**found, "permissions": {"allow": ["Bash"]}, "hooks": {}}))
    home.connect(SERVICES[1])
    home.undo()
    assert json.loads(home.path.read_text()) == {"permissions": {"allow": ["Bash"]}, "hooks": {}}
    assert home.left() == [".claude/settings.json"]


@pytest.mark.parametrize(
    "name", ["claude-code", "codex", "opencode", "pi", "continue", "aider", "zed"]
)
def test_a_file_nobody_touched_since_is_gone_with_the_folders_we_made(
    tmp_path: Path, name: str
) -> None:
    home = Home(tmp_path, name)
    for service in SERVICES:
        home.connect(service)
    home.undo()
    assert {path.name for path in tmp_path.iterdir()} == {"state"}


@pytest.mark.parametrize("name", JSON_CLIENTS)
@pytest.mark.parametrize(
    "before", ["{}", '{"a":1}', '{\n\t"a": {\n\t\t"b": []\n\t}\n}', '{"a": 1,\r\n "b": 2}\r\n']
)
def test_connect_keeps_every_byte_of_a_json_file(tmp_path: Path, name: str, before: str) -> None:
    home = Home(tmp_path, name)
    home.has(before)
    home.connect()
    after = home.path.read_bytes().decode()
    rest = iter(after)
    assert all(letter in rest for letter in before)  # all of it, in its order
    assert json.loads(after)["a"] == json.loads(before)["a"] if "a" in before else True
    home.has(after + "\n")  # touched: no copy helps now
    home.undo()
    assert home.path.read_bytes().decode() == before + "\n"


@pytest.mark.parametrize("name", JSON_CLIENTS)
def test_the_way_back_is_there_after_any_edits(tmp_path: Path, name: str) -> None:
    """A shadow gets every edit of the user and none of ours; the file has to end like it."""
    for seed in range(70):
        choose = random.Random(seed)
        home = Home(tmp_path / str(seed), name)
        shadow = random_object(choose, 3) if choose.random() < 0.7 else None
        if shadow is not None:
            home.has(json.dumps(shadow, indent=choose.choice([None, 2, 4])))
        home.connect()
        for _ in range(choose.randrange(1, 5)):
            if choose.random() < 0.3:
                home.connect(choose.choice(SERVICES))
            else:
                shadow = edited_by_the_user(choose, home, shadow)
        home.undo()
        found = json.loads(home.path.read_text()) if home.path.exists() else None
        assert found == shadow, seed


def random_object(choose: random.Random, depth: int) -> dict[str, Any]:
    names = ["env", "provider", "swiftlm", "model", "agent", "language_models", "ä"]
    some = choose.sample(names, choose.randrange(len(names)))
    return {name: random_value(choose, depth - 1) for name in some}


def random_value(choose: random.Random, depth: int) -> Any:
    if depth and choose.random() < 0.5:
        return random_object(choose, depth)
    return choose.choice([1, True, None, 'text, {with} "marks"', [1, {"a": 2}], "ü"])


def edited_by_the_user(choose: random.Random, home: Home, shadow: Any) -> dict[str, Any]:
    """A new name in some object of the file, which is then written in some other form."""
    found = json.loads(home.path.read_text())
    shadow = {} if shadow is None else copy.deepcopy(shadow)
    here, there = found, shadow
    while objects := [k for k, v in here.items() if isinstance(v, dict)]:
        if choose.random() < 0.4:
            break
        key = choose.choice(objects)
        here = here[key]
        if not isinstance(there.get(key), dict):
            there[key] = {}  # the user's new name needs ours above it
        there = there[key]
    name = f"new{choose.randrange(1000)}"
    here[name] = there[name] = random_value(choose, 2)
    if choose.random() < 0.5:
        found = dict(sorted(found.items(), reverse=True))
    home.has(json.dumps(found, indent=choose.choice([None, 1, 4]), ensure_ascii=False))
    return shadow


def test_a_value_that_was_overwritten_comes_back_and_a_changed_one_stays(tmp_path: Path) -> None:
    home = Home(tmp_path, "claude-code")
    home.has('{"env": {"ANTHROPIC_BASE_URL": "https://x", "ANTHROPIC_MODEL": "theirs"}}')
    home.connect()
    found = json.loads(home.path.read_text())
    found["env"]["ANTHROPIC_MODEL"] = "chosen since"
    home.has(json.dumps(found))
    assert home.undo() == ("env.ANTHROPIC_MODEL",)
    wanted = {"env": {"ANTHROPIC_BASE_URL": "https://x", "ANTHROPIC_MODEL": "chosen since"}}
    assert json.loads(home.path.read_text()) == wanted


def test_a_model_that_the_user_added_to_our_list_stays(tmp_path: Path) -> None:
    home = Home(tmp_path, "zed")
    home.connect()
    found = json.loads(home.path.read_text())
    models = found["language_models"]["openai_compatible"]["swiftlm"]["available_models"]
    models.append({"name": "mine", "max_tokens": 5})
    home.has(json.dumps(found))
    home.undo()
    assert "mine" in home.path.read_text()
    assert '"one"' not in home.path.read_text()


CODEX = '# mine\nmodel = "gpt-9"  # best\nnotes = """\nmodel = 1\n"""\n\n[tools]\nmodel = "other"\n'


def as_written_by_codex(text: str) -> str:
    """Codex keeps comments and adds its keys behind the last one, so between our marks."""
    return text.replace('model_provider = "swiftlm"\n', 'model_provider = "swiftlm"\neffort = 1\n')


def without_comments(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("# "))


def in_another_form(text: str) -> str:
    return text.replace('name = "swiftlm"', "name='swiftlm'").replace("\n", "\r\n")


@pytest.mark.parametrize("change", [as_written_by_codex, without_comments, in_another_form])
@pytest.mark.parametrize("before", [CODEX, "", 'model = "gpt-9"\n', "[tools]\na = 1\n"])
@pytest.mark.parametrize("again", [False, True])
def test_codex_may_rewrite_its_file(
    tmp_path: Path, before: str, change: Callable[[str], str], again: bool
) -> None:
    home = Home(tmp_path, "codex")
    home.has(before)
    home.connect()
    home.has(change(home.path.read_bytes().decode()) + "\n[added]\nby = 'codex'\n")
    if again:
        home.connect(SERVICES[1])
        assert tomllib.loads(home.path.read_text())["model"] == "two"
    home.undo()
    found = tomllib.loads(home.path.read_text())
    wanted = {**tomllib.loads(before), "added": {"by": "codex"}}
    if change is as_written_by_codex:
        wanted["effort"] = 1
    assert found == wanted
    assert "swiftlm" not in home.path.read_text()


def test_codex_keys_that_somebody_added_to_our_table_stay(tmp_path: Path) -> None:
    home = Home(tmp_path, "codex")
    home.has("a = 1\n")
    home.connect()
    more = '"responses"\nrequest_max_retries = 9\n'
    home.has(home.path.read_text().replace('"responses"\n', more))
    home.connect(SERVICES[1])
    table = tomllib.loads(home.path.read_text())["model_providers"]["swiftlm"]
    assert (table["request_max_retries"], table["wire_api"]) == (9, "responses")
    home.undo()
    found = tomllib.loads(home.path.read_text())
    assert found == {"a": 1, "model_providers": {"swiftlm": {"request_max_retries": 9}}}


def test_aider_keys_of_the_user_stay_in_any_encoding(tmp_path: Path) -> None:
    home = Home(tmp_path, "aider")
    before = "# Grüße\r\nauto-commits: false\r\n".encode("latin-1")
    home.has(before)
    home.connect()
    home.has(home.path.read_bytes().replace(b"\r\n# <<<", b"\r\ndark-mode: true\r\n# <<<"))
    home.connect(SERVICES[1])
    home.undo()
    assert home.path.read_bytes() == before + b"dark-mode: true\r\n"


_IN_JSON = '{"Grüße": "müde", "agent": {"n": "ü"}, "env": {"X": "ü"}}\n'
_IN_YAML = "# Grüße\nname: müde\n"
WRITTEN_ELSEWHERE = {
    **dict.fromkeys(JSON_CLIENTS, _IN_JSON),
    "codex": '# Grüße\nmodel = "müde"\n[x]\ny = "ü"\n',
    "continue": _IN_YAML,
    "aider": _IN_YAML,
}


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", sorted(WRITTEN_ELSEWHERE))
def test_a_file_in_another_encoding_is_left_alone_or_comes_back_byte_for_byte(
    tmp_path: Path, name: str, encoding: str
) -> None:
    home = Home(tmp_path, name)
    before = WRITTEN_ELSEWHERE[name].encode(encoding)
    added = b" \n" if name in JSON_CLIENTS else "# später ü\n".encode("latin-1")
    home.has(before)
    try:
        home.connect()
    except Unsafe:
        assert home.path.read_bytes() == before
        assert encoding.startswith("utf") or name == "continue"
        return
    home.connect(SERVICES[1])
    home.has(home.path.read_bytes() + added)  # by its program, since
    home.undo()
    assert home.path.read_bytes() == before + added
    home.has(before)
    home.connect()
    home.undo()
    assert home.path.read_bytes() == before


def test_continue_keeps_the_models_that_were_added(tmp_path: Path) -> None:
    home = Home(tmp_path, "continue")
    home.connect()
    mine = "  - name: mine\n    provider: ollama\n    model: x\n"
    home.has(home.path.read_text().replace('"', "") + mine)
    home.undo()
    text = home.path.read_text()
    assert mine in text
    assert "5413" not in text


@pytest.mark.parametrize("changed", [False, True])
def test_a_link_into_a_folder_of_dotfiles_stays_one(tmp_path: Path, changed: bool) -> None:
    home = Home(tmp_path, "claude-code")
    real = tmp_path / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text('{"mine": 1}')
    home.path.parent.mkdir()
    home.path.symlink_to("../dotfiles/claude.json")
    home.connect()
    if changed:
        real.write_text(real.read_text() + "\n")
    home.undo()
    assert home.path.is_symlink()
    assert json.loads(real.read_text()) == {"mine": 1}
    assert home.left() == [".claude/settings.json", "dotfiles/claude.json"]


def test_a_link_that_leads_nowhere_gets_its_target_and_stays(tmp_path: Path) -> None:
    home = Home(tmp_path, "claude-code")
    home.path.parent.mkdir()
    home.path.symlink_to(tmp_path / "later" / "claude.json")
    home.connect()
    assert "5413" in (tmp_path / "later" / "claude.json").read_text()
    home.undo()
    assert home.path.is_symlink()
    assert not (tmp_path / "later").exists()


@pytest.mark.parametrize("record", ["", "{", "[]", '{"file": 1, "nonsense": 2}', "\0"])
def test_an_unreadable_record_names_the_copy(tmp_path: Path, record: str) -> None:
    home = Home(tmp_path, "claude-code")
    home.has('{"mine": 1}')
    home.connect()
    (tmp_path / "state" / "connect" / "claude-code.json").write_text(record)
    for verb in (home.undo, home.connect):
        with pytest.raises(CtlError, match="cannot be read") as caught:
            verb()
        assert "settings.json.before-swiftlm" in caught.value.hint


FILES = ("user_files.py", "connect/undo.py")


@pytest.mark.parametrize("name", ["claude-code", pytest.param("codex", marks=pytest.mark.slow)])
def test_a_connect_killed_at_any_line_can_be_taken_back(tmp_path: Path, name: str) -> None:
    before = '{"mine":   1}' if name == "claude-code" else CODEX
    home = Home(tmp_path / "0", name)
    home.has(before)
    count = 0

    def connect() -> None:
        home.connect()

    for number in at_every_line(connect, FILES):
        count += 1
        assert home.path.read_text() == before or "5413" in home.path.read_text()
        if number % 2:
            home.connect(SERVICES[1])  # the next command is the same one again
        home.undo_if_connected()
        assert home.path.read_text() == before
        home = Home(tmp_path / str(count), name)
        home.has(before)
    assert count > 60


def test_an_undo_killed_at_any_line_is_finished_by_the_next(tmp_path: Path) -> None:
    def stage(number: int) -> Home:
        made = Home(tmp_path / str(number), "claude-code")
        made.has('{"env": {"ANTHROPIC_BASE_URL": "https://x"}}')
        made.connect()
        made.has(made.path.read_text().replace("{", '{"since": 1,', 1))
        return made

    home = stage(0)

    def undo() -> None:
        home.undo()

    for number in at_every_line(undo, FILES):
        home.undo_if_connected()
        found = json.loads(home.path.read_text())
        assert found == {"since": 1, "env": {"ANTHROPIC_BASE_URL": "https://x"}}
        home = stage(number)


def test_a_full_disk_at_connect_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free in range(3):  # the copy, the record, the file
        home = Home(tmp_path / str(free), "claude-code")
        home.has('{"mine": 1}')
        left = free

        def sync(_: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("swiftlm_proto.user_files._sync_folder", lambda _: None)
            patch.setattr("os.fsync", sync)
            with pytest.raises(OSError, match="No space left"):
                home.connect()
        assert home.path.read_text() == '{"mine": 1}'
        home.connect()
        home.undo()
        assert home.path.read_text() == '{"mine": 1}'
        assert home.left() == [".claude/settings.json"]
