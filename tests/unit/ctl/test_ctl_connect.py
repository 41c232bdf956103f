"""Clients' configuration files: what is written, what survives, and the way back."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from swiftlm_proto import messages as m
from swiftlmctl.client import Daemon
from swiftlmctl.connect.clients import CLIENTS, Service, named
from swiftlmctl.connect.edits import Unsafe, merged_json, toml_with, yaml_with
from swiftlmctl.connect.undo import UndoLedger
from swiftlmctl.errors import CtlError

SERVICE = Service("http://127.0.0.1:5413", "smollm2-135m", 8192)


def edited(name: str, text: str = "", service: Service = SERVICE) -> str:
    client = named(name)
    assert client is not None
    return client.edit(text, service)


def test_claude_code_gets_the_base_without_v1_and_keeps_its_settings() -> None:
    before = {"theme": "dark", "env": {"EDITOR": "vi", "ANTHROPIC_BASE_URL": "https://x"}}
    found = json.loads(edited("claude-code", json.dumps(before)))
    assert found["theme"] == "dark"
    assert found["env"]["EDITOR"] == "vi"
    assert found["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:5413"
    assert found["env"]["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "smollm2-135m"


def test_codex_speaks_responses_and_keeps_its_comments() -> None:
    before = '# mine\nmodel = "gpt-9"\napproval = "never"\n\n[tools]\nmodel = "other"\n'
    text = edited("codex", before)
    found = tomllib.loads(text)
    assert (found["model"], found["model_provider"]) == ("smollm2-135m", "swiftlm")
    assert found["model_providers"]["swiftlm"]["wire_api"] == "responses"
    assert found["model_providers"]["swiftlm"]["base_url"] == "http://127.0.0.1:5413/v1"
    assert found["approval"] == "never"
    assert found["tools"]["model"] == "other"  # a key of the same name in a table is not ours
    assert "# mine" in text
    assert '# model = "gpt-9"' in text


def test_connecting_twice_gives_the_same_file() -> None:
    for client in CLIENTS:
        if client.file:
            once = client.edit("", SERVICE)
            assert client.edit(once, SERVICE) == once


def test_a_client_of_ollama_is_told_the_address_without_v1() -> None:
    client = named("ollama")
    assert client is not None
    text = client.by_hand(SERVICE)
    assert "OLLAMA_HOST=http://127.0.0.1:5413\n" in text
    assert "/v1" not in text
    assert SERVICE.model in text


def test_opencode_is_told_the_context() -> None:
    found = json.loads(edited("opencode"))
    model = found["provider"]["swiftlm"]["models"]["smollm2-135m"]
    assert model["limit"]["context"] == 8192
    unknown = Service(SERVICE.address, "m", 0)
    assert (
        "limit"
        not in json.loads(edited("opencode", "", unknown))["provider"]["swiftlm"]["models"]["m"]
    )


def test_every_client_with_a_setting_for_it_is_told_the_context() -> None:
    told = [c.name for c in CLIENTS if c.file and "8192" in c.edit("", SERVICE)]
    assert told == ["claude-code", "codex", "opencode", "pi", "continue", "zed"]
    codex = tomllib.loads(edited("codex"))
    assert codex["model_context_window"] == 8192
    assert codex["model_auto_compact_token_limit"] < 8192
    claude = json.loads(edited("claude-code"))["env"]
    assert claude["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "8192"


def test_the_page_of_clients_names_what_each_sends_first() -> None:
    page = (Path(__file__).parents[3] / "docs/clients.md").read_text()
    for client in CLIENTS:
        if client.first_tokens:
            row = f"| {client.title} | {client.first_tokens:,} | {client.wanted_context:,} |"
            assert row in page


def test_a_context_that_is_not_known_is_not_made_up() -> None:
    unknown = Service(SERVICE.address, "m", 0)
    for name in ("claude-code", "codex", "opencode", "pi", "continue"):
        assert "context" not in edited(name, "", unknown).lower(), name


def test_pi_gets_a_provider_and_the_command_that_uses_it() -> None:
    before = '{"providers": {"mine": {"baseUrl": "http://x"}}}'
    found = json.loads(edited("pi", before))["providers"]
    assert found["mine"] == {"baseUrl": "http://x"}
    assert found["swiftlm"]["api"] == "openai-completions"
    assert found["swiftlm"]["baseUrl"] == "http://127.0.0.1:5413/v1"
    assert found["swiftlm"]["models"][0]["id"] == "smollm2-135m"
    client = named("pi")
    assert client is not None
    assert client.next_step(SERVICE) == "start `pi --provider swiftlm --model smollm2-135m`"


def test_file_with_comments_is_left_alone() -> None:
    with pytest.raises(Unsafe, match="comments"):
        edited("zed", '// my settings\n{"theme": "dark"}')


def test_continue_with_models_of_its_own_is_left_alone() -> None:
    with pytest.raises(Unsafe, match="models already"):
        edited("continue", "models:\n  - name: mine\n")


def test_aider_that_has_a_model_is_left_alone() -> None:
    with pytest.raises(Unsafe, match="already sets model"):
        edited("aider", "model: gpt\n")


def test_broken_toml_is_left_alone() -> None:
    with pytest.raises(Unsafe, match="not sound TOML"):
        toml_with("model = ", {"model": "x"}, "[a]")


def test_json_that_is_no_object_is_left_alone() -> None:
    with pytest.raises(Unsafe, match="object"):
        merged_json("[1]", {})


def test_yaml_block_is_replaced_not_repeated() -> None:
    once = yaml_with("a: 1\n", {"b": "x"})
    assert yaml_with(once, {"b": "y"}).count("b:") == 1


def test_every_client_can_be_set_up_by_hand() -> None:
    for client in CLIENTS:
        assert "127.0.0.1:5413" in client.by_hand(SERVICE)


def test_undo_brings_back_the_bytes_of_before(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"mine":   true}')
    path.chmod(0o640)
    ledger = UndoLedger(tmp_path / "state")
    backup = ledger.write("x", path, "{}")
    assert backup is not None
    assert path.stat().st_mode & 0o777 == 0o640
    ledger.undo("x")
    assert path.read_text() == '{"mine":   true}'
    assert not backup.exists()


def test_undo_after_two_writes_goes_back_to_the_first(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("first")
    ledger = UndoLedger(tmp_path / "state")
    ledger.write("x", path, "second")
    ledger.write("x", path, "third")
    ledger.undo("x")
    assert path.read_text() == "first"


def test_undo_removes_a_file_that_was_not_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.json"
    ledger = UndoLedger(tmp_path / "state")
    assert ledger.write("x", path, "{}") is None
    ledger.undo("x")
    assert not path.exists()


def test_undo_spares_what_somebody_changed_since(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    ledger = UndoLedger(tmp_path / "state")
    ledger.write("x", path, "{}")
    path.write_text('{"new": 1}')
    with pytest.raises(CtlError, match="changed since"):
        ledger.undo("x")
    assert path.read_text() == '{"new": 1}'


def test_undo_without_a_record_is_said(tmp_path: Path) -> None:
    with pytest.raises(CtlError, match="was not connected"):
        UndoLedger(tmp_path).undo("codex")


def test_linked_file_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    path = tmp_path / "config.json"
    path.symlink_to(real)
    UndoLedger(tmp_path / "state").write("x", path, '{"a": 1}')
    assert path.is_symlink()
    assert real.read_text() == '{"a": 1}'


@pytest.mark.parametrize(
    ("listens_at", "called_at"),
    [
        ("127.0.0.1:5413", "http://127.0.0.1:5413"),
        ("0.0.0.0:5413", "http://127.0.0.1:5413"),
        ("[::]:5413", "http://[::1]:5413"),
        ("[::1]:5413", "http://[::1]:5413"),
    ],
)
def test_clients_are_told_an_address_that_can_be_called(listens_at: str, called_at: str) -> None:
    status = m.DaemonStatus(http_address=listens_at)
    assert Daemon(None, None, None, status, Path()).url == called_at
