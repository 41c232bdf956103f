"""The verbs against a scripted daemon on a real socket: what they ask, print and exit with."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fake_admin import READY, FakeAdmin, Listening, said

from swiftlm_proto import messages as m
from swiftlm_proto.paths import Paths, under
from swiftlmctl.main import main


@dataclass(frozen=True, slots=True)
class Output:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


Ctl = Callable[..., Output]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("SWIFTLM_HOME", str(tmp_path))
    monkeypatch.setenv("SWIFTLM_SERVICE_MANAGER", "none")
    return under(tmp_path)


@pytest.fixture
def ctl(paths: Paths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctl:
    def run(*words: str) -> Output:
        monkeypatch.setattr(sys, "argv", ["swiftlmctl", *words])
        with pytest.raises(SystemExit) as left:
            main()
        found = capsys.readouterr()
        return Output(int(left.value.code or 0), found.out, found.err)

    return run


@pytest.fixture
def admin(paths: Paths) -> Iterator[FakeAdmin]:
    made = FakeAdmin()
    with Listening(made, paths.admin_socket):
        yield made


def test_status_shows_models_memory_and_speed(ctl: Ctl, admin: FakeAdmin) -> None:
    found = ctl("status")
    assert found.code == 0
    for part in ("smollm2-135m *", "2.0 GB of 8.0 GB", "61.5 tok/s", "127.0.0.1:5413"):
        assert part in found.out


def test_status_repeats_the_notes_of_a_load(ctl: Ctl, admin: FakeAdmin) -> None:
    loaded = replace(READY.loaded, notes=["served as text: mlx-vlm is missing"])
    admin.daemon.models = [replace(READY, loaded=loaded)]
    assert "note     smollm2-135m: served as text: mlx-vlm is missing" in ctl("status").out


def test_status_says_which_weights_are_float32_now(ctl: Ctl, admin: FakeAdmin) -> None:
    loaded = replace(READY.loaded, weights_note="weights expanded to float32: 538 MB")
    admin.daemon.models = [replace(READY, loaded=loaded, stats=None)]
    assert "smollm2-135m: weights expanded to float32: 538 MB" in ctl("status").out
    stats = replace(READY.stats, weights_note="weights are quantized again")
    admin.daemon.models = [replace(READY, loaded=loaded, stats=stats)]
    said = ctl("status").out
    assert "smollm2-135m: weights are quantized again" in said
    assert "expanded" not in said


def test_status_json_has_what_scripts_need(ctl: Ctl, admin: FakeAdmin) -> None:
    found = ctl("status", "--json").json
    model = found["models"][0]
    assert (found["state"], found["pid"], found["service"]["manager"]) == (
        "ready",
        admin.daemon.pid,
        "none",
    )
    assert (model["state"], model["pid"], model["footprint_bytes"]) == ("ready", 4242, 250_000_000)
    assert model["stats"]["decode_tokens_per_s"] == 61.5


def test_watching_in_a_pipe_prints_a_line_each_time(
    ctl: Ctl, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swiftlmctl.commands import status

    def interrupted(_: float) -> None:  # where it would wait for the daemon to come back
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", interrupted)
    assert ctl("status", "--watch").out.count("decode=61.5tok/s") == 3


def test_absent_daemon_is_code_3_with_the_command_that_starts_it(ctl: Ctl) -> None:
    for words in (("status",), ("load", "x"), ("models",), ("run", "hello"), ("mem",)):
        found = ctl(*words)
        assert found.code == 3
        assert "swiftlmctl start" in found.out + found.err


def test_absent_daemon_in_json(ctl: Ctl) -> None:
    found = ctl("status", "--json")
    assert (found.code, found.json["state"]) == (3, "stopped")


def test_daemon_that_gave_up_says_why(ctl: Ctl, paths: Paths) -> None:
    paths.state.mkdir()
    paths.fatal_file.write_text('{"code": 78, "reason": "config.toml: unknown option prot"}')
    found = ctl("status")
    assert found.code == 1
    assert "unknown option prot" in found.out
    assert ctl("status", "--json").json["state"] == "fatal"


def test_greeting_carries_protocol_and_version(ctl: Ctl, admin: FakeAdmin) -> None:
    ctl("requests")
    hello = admin.asked[0]
    assert isinstance(hello, m.StatusRequest)
    assert hello.client_protocol == m.PROTOCOL
    assert hello.client_version


def test_other_protocol_is_refused_with_its_own_code(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.daemon.protocol = m.PROTOCOL + 1
    found = ctl("load", "x")
    assert found.code == 7
    assert f"protocol {m.PROTOCOL + 1}" in found.err
    assert ctl("status").code == 0  # what a person needs to see why


def test_other_version_is_warned_about(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.daemon.version = "9.9"
    found = ctl("requests")
    assert found.code == 0
    assert "the daemon runs 9.9" in found.err


def test_verb_that_an_old_daemon_lacks_is_a_version_matter(ctl: Ctl, admin: FakeAdmin) -> None:
    found = ctl("mem")  # the scripted daemon does not implement it
    assert found.code == 7
    assert "restart" in found.err


def test_load_passes_the_options_and_reports(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.events = [
        m.OperationEvent(stage="weights", fraction=0.4, done_bytes=40, total_bytes=100),
        m.OperationEvent(stage="ready", fraction=1.0, done=True, model=admin.daemon.models[0]),
    ]
    found = ctl("load", "smollm2-135m", "--context", "4096", "--keep-alive", "2h30m", "--pin")
    assert found.code == 0
    assert "load smollm2-135m: weights 40%" in found.out
    assert "is loaded in 0.5 s" in found.out
    request = admin.asked[-1]
    assert isinstance(request, m.LoadModelRequest)
    assert request.options is not None
    assert (request.options.context, request.options.keep_alive_s) == (4096, 9000)
    assert request.options.parallel is None  # not asked for is not sent
    assert request.pin


def test_layers_are_a_number_auto_or_all(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.events = [m.OperationEvent(done=True)]
    for text, number in (("12", 12), ("auto", 0xFFFFFFFE), ("all", 0xFFFFFFFF)):
        assert ctl("load", "x", "--gpu-layers", text).code == 0
        assert admin.asked[-1].options.gpu_layers == number
    assert ctl("load", "x", "--gpu-layers", "most").code == 2
    admin.daemon.models[0].plan = '{"gpu_layers": 3}'
    assert "3 layers on the accelerator" in ctl("status").out


def test_load_json_is_one_object_a_line(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.events = [m.OperationEvent(stage="weights"), m.OperationEvent(done=True)]
    lines = [json.loads(line) for line in ctl("load", "x", "--json").out.splitlines()]
    assert [line["done"] for line in lines] == [False, True]


def test_refused_load_prints_the_daemons_words(ctl: Ctl, admin: FakeAdmin) -> None:
    fault = m.Fault(message="needs 21.4 GB, 17.9 GB free; smallest change that fits: --kv turbo")
    admin.events = [m.OperationEvent(fault=fault)]
    found = ctl("load", "big")
    assert (found.code, "--kv turbo" in found.err) == (1, True)


def test_load_that_just_stops_is_a_failure(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.events = [m.OperationEvent(stage="weights", fraction=0.4)]
    assert ctl("load", "x").code == 1


def test_unload_says_what_came_back(ctl: Ctl, admin: FakeAdmin) -> None:
    assert "250 MB came back" in ctl("unload", "smollm2-135m").out


@pytest.mark.parametrize("verb", ["pin", "unpin"])
def test_a_model_is_pinned_and_let_go(ctl: Ctl, admin: FakeAdmin, verb: str) -> None:
    found = ctl(verb, "smollm2-135m")
    assert (found.code, "pinned" in found.out) == (0, True)
    assert admin.asked[-1] == m.PinModelRequest(model="smollm2-135m", pinned=verb == "pin")
    admin.fault = m.Fault(kind=m.FaultKind.INVALID, message="it is not loaded")
    assert ctl(verb, "smollm2-135m").code == 1


def test_pull_shows_size_speed_and_time_left(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.events = [
        m.OperationEvent(
            stage="fetching",
            fraction=0.5,
            done_bytes=500_000_000,
            total_bytes=1_000_000_000,
            bytes_per_s=25e6,
            eta_s=20,
        ),
        m.OperationEvent(done=True, total_bytes=1_000_000_000),
    ]
    found = ctl("pull", "org/model", "--include", "*.json", "--include", "*.safetensors")
    assert "500 MB of 1.0 GB, 25.0 MB/s, 20s left" in found.out
    request = admin.asked[-1]
    assert isinstance(request, m.PullRequest)
    assert request.include == ["*.json", "*.safetensors"]


def test_models_are_a_table_in_a_pipe(ctl: Ctl, admin: FakeAdmin) -> None:
    head, row = ctl("models").out.splitlines()
    assert head.split()[:2] == ["MODEL", "STATE"]
    assert "101 MB" in row
    assert ctl("models", "list").out.splitlines() == [head, row]


def test_unknown_model_names_the_known_ones(ctl: Ctl, admin: FakeAdmin) -> None:
    found = ctl("models", "show", "nope")
    assert (found.code, "smollm2-135m" in found.err) == (1, True)


def test_removal_in_a_pipe_needs_yes(
    ctl: Ctl, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    found = ctl("models", "rm", "smollm2-135m")
    assert found.code != 0
    assert all(r.dry_run for r in admin.asked if isinstance(r, m.RemoveModelRequest))
    assert ctl("models", "rm", "smollm2-135m", "--yes").code == 0
    last = admin.asked[-1]
    assert isinstance(last, m.RemoveModelRequest)
    assert not last.dry_run


def test_run_prints_the_answer_and_nothing_else(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.answer = said("Par", "is", ".")
    found = ctl("run", "What is the capital of France?", "--max-tokens", "8", "--seed", "1")
    assert (found.code, found.out) == (0, "Paris.\n")
    request = admin.asked[-1]
    assert isinstance(request, m.AdminGenerateRequest)
    assert request.request is not None
    assert request.request.max_tokens == 8
    chat = request.request.chat
    assert chat is not None
    assert chat.messages[-1].parts[0].text == "What is the capital of France?"


def test_run_json_carries_usage(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.answer = said("Paris")
    found = ctl("run", "hello", "--json").json
    assert (found["text"], found["finish_reason"], found["usage"]["prompt_tokens"]) == (
        "Paris",
        "stop",
        9,
    )


def test_failed_answer_is_a_failed_verb(ctl: Ctl, admin: FakeAdmin) -> None:
    fault = m.Fault(message="the engine died")
    admin.answer = [
        m.SequenceEvent(finished=m.Finished(reason=m.FinishedReason.ERROR, fault=fault))
    ]
    found = ctl("run", "hello")
    assert (found.code, "the engine died" in found.err) == (1, True)


def test_answer_without_an_end_is_a_failed_verb(ctl: Ctl, admin: FakeAdmin) -> None:
    admin.answer = said("half")[:1]
    assert ctl("run", "hello").code == 1


def test_chat_keeps_the_history(
    ctl: Ctl, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["first", "/help", "second", "/clear", "third"])

    def typed(prompt: str = "") -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    admin.answer = said("yes")
    said_all = ctl("chat")
    assert said_all.code == 0
    assert "Ctrl-D leaves" in said_all.out
    asked = [r.request for r in admin.asked if isinstance(r, m.AdminGenerateRequest)]
    texts = [[msg.parts[0].text for msg in r.chat.messages] for r in asked if r and r.chat]
    assert texts == [["first"], ["first", "yes", "second"], ["third"]]


def test_config_set_says_that_a_restart_is_needed(ctl: Ctl, admin: FakeAdmin) -> None:
    found = ctl("config", "set", "http.port", "5500")
    assert found.code == 0
    assert "http.port = 5500 (file); `swiftlmctl restart`" in found.out


def test_config_edit_has_the_daemon_read_the_file_and_says_what_counts_when(
    ctl: Ctl, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "true")
    monkeypatch.setattr("swiftlmctl.commands.config_file.validate", lambda file=None: "is sound")
    admin.reloaded = [
        m.ConfigEntry("log.level", "debug", "file", "Level."),
        m.ConfigEntry("http.port", "5500", "file", "Port.", needs_restart=True),
        m.ConfigEntry("model.tiny", "context = 100", "file", "What holds for tiny alone."),
    ]
    assert ctl("config", "edit").out.splitlines()[1:] == [
        "log.level = debug (file)",
        "http.port = 5500 (file); `swiftlmctl restart` makes it count",
        "model.tiny = context = 100 (file); counts when a model is loaded",
    ]
    admin.reloaded = []
    assert "nothing changed for the running daemon" in ctl("config", "edit").out


def test_config_with_a_wrong_key_prints_the_nearest(ctl: Ctl, admin: FakeAdmin) -> None:
    found = ctl("config", "set", "http.prot", "1")
    assert (found.code, "did you mean 'http.port'" in found.err) == (1, True)


def test_config_show_names_the_origin_on_request(ctl: Ctl, admin: FakeAdmin) -> None:
    assert "ORIGIN" not in ctl("config", "show").out
    assert "default" in ctl("config", "show", "--origin").out
    assert ctl("config", "get", "http.port").out == "5413\n"


def test_requests_and_cancel(ctl: Ctl, admin: FakeAdmin) -> None:
    assert "r1" in ctl("requests").out
    assert ctl("cancel", "r1").code == 0
    assert ctl("cancel", "r2").code == 1


def test_cache_statistics_are_laid_out(ctl: Ctl, admin: FakeAdmin) -> None:
    out = ctl("cache", "stats").out
    assert "1.5 MB" in out
    assert ctl("cache", "stats", "--json").json["smollm2-135m"]["num_hits"] == 3
    ctl("cache", "clear")
    last = admin.asked[-1]
    assert isinstance(last, m.CacheControlRequest)
    assert last.clear


def test_plan_is_a_table_or_json(ctl: Ctl, admin: FakeAdmin) -> None:
    assert "101 MB" in ctl("plan", "smollm2-135m", "-v").out
    assert ctl("plan", "smollm2-135m", "--json").json["verdict"] == "resident"


def test_best_models_are_a_table_or_json(ctl: Ctl, admin: FakeAdmin) -> None:
    found = ctl("models", "best")
    assert found.code == 0
    for part in ("largest", "fastest", "agents", "org/one", "4.0 GB", "20-40", "fits", "no"):
        assert part in found.out
    listed = ctl("models", "best", "--json").json
    assert [one["best"] for one in listed] == ["largest", "fastest", "agents"]
    assert listed[0]["model"] == "org/one"


def test_version_tells_both(ctl: Ctl, admin: FakeAdmin) -> None:
    found = ctl("version", "--json").json
    assert found["daemon"] == {"version": "0.0.0+checkout", "protocol": m.PROTOCOL}


def test_version_without_a_daemon_is_no_failure(ctl: Ctl) -> None:
    assert ctl("version").code == 0


def test_connect_writes_the_clients_file_and_takes_it_back(
    ctl: Ctl, admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / "home" / ".codex" / "config.toml"
    assert ctl("connect", "codex").code == 0
    assert 'model = "smollm2-135m"' in path.read_text()
    assert "already set up" in ctl("connect", "codex").out
    assert ctl("connect", "codex", "--undo").code == 0
    assert not path.exists()


def test_connect_names_what_an_agent_will_miss(
    ctl: Ctl, admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = ctl("connect", "codex")
    assert "8,192 tokens of context" in found.out
    assert "smollm2-135m does not support tools" in found.err
    assert "no model 'org/typo' here" in ctl("connect", "codex", "--print", "-m", "org/typo").err


def test_connect_says_that_an_agent_cannot_start_and_what_mends_it(
    ctl: Ctl, admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    admin.daemon.models = [replace(READY, context=131_072)]
    found = " ".join(ctl("connect", "claude-code").err.split())
    assert "Claude Code sends about 20,000 tokens" in found
    assert "swiftlmctl load smollm2-135m --ctx 32768" in found
    admin.daemon.models = [replace(READY, context=8192)]
    short = " ".join(ctl("connect", "codex").err.split())
    assert "takes no more than 8,192: use another model" in short
    roomy = replace(READY.loaded, context=65_536)
    admin.daemon.models = [replace(READY, context=131_072, loaded=roomy)]
    assert "before your first word" not in ctl("connect", "opencode").err


def test_connect_makes_a_key_named_after_the_client_where_one_is_required(
    ctl: Ctl, admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    admin.key_names = ["mum"]
    found = ctl("connect", "codex")
    assert "made the key 'codex'" in found.out
    text = (tmp_path / "home" / ".codex" / "config.toml").read_text()
    assert f'experimental_bearer_token = "sk-{"k" * 43}"' in text
    assert f"OPENAI_API_KEY=sk-{'k' * 43}" in ctl("connect", "openwebui").out
    assert admin.key_names == ["mum", "codex", "openwebui"]
    monkeypatch.setattr("swiftlmctl.connect.keys._is_taken", lambda url, key: True)
    assert "already set up" in ctl("connect", "codex").out
    assert ctl("connect", "codex", "--key", "sk-mine").code == 0
    assert admin.key_names == ["mum", "codex", "openwebui"]


def test_connect_print_makes_no_key_and_says_which_verb_does(
    ctl: Ctl, admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    admin.key_names = ["mum"]
    for name in ("claude-code", "openwebui"):
        found = ctl("connect", name, "--print")
        assert "YOUR_KEY" in found.out
        assert f"swiftlmctl keys add {name}" in found.err
    assert admin.key_names == ["mum"]


def test_connect_prints_when_it_must_not_write(
    ctl: Ctl, admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".config" / "zed" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text('// mine\n{"theme": "dark"}')
    out = ctl("connect", "zed").out
    assert "is left alone" in out
    assert "openai_compatible" in out
    assert path.read_text() == '// mine\n{"theme": "dark"}'


def test_connect_alone_lists_the_clients(ctl: Ctl) -> None:
    found = ctl("connect")
    assert (found.code, "claude-code" in found.out) == (0, True)
    assert ctl("connect", "emacs").code == 2


def test_usage_errors_are_code_2(ctl: Ctl) -> None:
    assert ctl("load").code == 2
    assert ctl("nonsense").code == 2
    assert ctl("load", "x", "--keep-alive", "soon").code == 2
    assert ctl("plan", "x", "--ctx", str(2**32 + 5)).code == 2  # as a message it would be 5
    assert ctl("logs", "--level", "loud").code == 2


def test_socket_of_another_user_is_denied(ctl: Ctl, admin: FakeAdmin, paths: Paths) -> None:
    import os

    if os.getuid() == 0:
        pytest.skip("root may open every socket")
    paths.admin_socket.chmod(0)
    assert ctl("requests").code == 6


def test_silent_listener_is_a_failure_not_a_hang(
    ctl: Ctl, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.setattr("swiftlmctl.client.GREETING_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(paths.admin_socket))
        server.listen()
        assert ctl("requests").code == 5


def test_doctor_fails_when_a_check_fails(ctl: Ctl, paths: Paths) -> None:
    paths.state.mkdir()
    paths.fatal_file.write_text('{"reason": "no device"}')
    found = ctl("doctor", "--json")
    assert found.code == 1
    checks = {check["name"]: check for check in found.json["checks"]}
    assert checks["last words"]["status"] == "fail"
    assert checks["folder"]["status"] == "pass"


def test_a_watch_goes_on_after_the_daemon_went_away_and_came_back(
    ctl: Ctl, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swiftlmctl import client
    from swiftlmctl.commands import status
    from swiftlmctl.errors import CtlError

    pauses, calls, real = [], [], client.call

    def call(verb: object) -> None:
        calls.append(verb)
        if len(calls) == 3:
            raise KeyboardInterrupt
        monkeypatch.setattr(FakeAdmin, "watch_status", _one_status)
        real(verb)
        raise CtlError("swiftlmd closed the connection")

    async def _one_status(self: FakeAdmin, message: object):
        yield self.daemon

    monkeypatch.setattr(client, "call", call)
    monkeypatch.setattr(status.time, "sleep", pauses.append)
    with pytest.raises(KeyboardInterrupt):
        status._watch(0.1, json=True)
    assert len(pauses) == 2


def test_a_watch_of_a_daemon_that_was_never_there_ends_with_its_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from swiftlmctl import client
    from swiftlmctl.commands import status
    from swiftlmctl.errors import CtlError

    def call(verb: object) -> None:
        raise CtlError("swiftlmd is not running")

    monkeypatch.setattr(client, "call", call)
    with pytest.raises(CtlError):
        status._watch(0.1, json=True)
