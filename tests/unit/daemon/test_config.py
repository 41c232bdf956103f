"""Configuration: four sources in order, errors that help, edits that keep what a user wrote."""

from __future__ import annotations

import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swiftlm_proto import messages as m
from swiftlmd.admin.load_options import options_over
from swiftlmd.config.edit import set_value, unset_value, write_atomically
from swiftlmd.config.http import http_options, key_hashes
from swiftlmd.config.key_hash import key_hash
from swiftlmd.config.live import LiveConfiguration
from swiftlmd.config.load import ConfigError, load, unknown_option
from swiftlmd.config.migrate import migrate
from swiftlmd.config.settings import NEVER, OPTIONS, Form, Settings
from swiftlmd.config.values import checked, parsed, shown, size_bytes
from swiftlmd.faults import ServiceError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_sources_override_each_other_in_order_and_say_so(file: Path) -> None:
    file.write_text('[http]\nport = 1000\nhost = "127.0.0.2"\n[log]\nlevel = "debug"\n')
    environ = {"SWIFTLM_HTTP_PORT": "2000", "SWIFTLM_HTTP_HOST": "127.0.0.3"}
    found = load(file, environ, {"http.port": "3000"})
    assert found.settings.http_port == 3000
    assert found.settings.http_host == "127.0.0.3"
    assert found.settings.log_level == "debug"
    assert [found.origins[k] for k in ("http.port", "http.host", "log.level", "http.web")] == [
        "flag",
        "environment",
        "file",
        "default",
    ]


def test_numbers_in_a_table_of_text_need_no_quotes(file: Path) -> None:
    file.write_text('[model."a/b".sampling]\ntemperature = 0.7\ntop_k = 20\n')
    sampling = load(file, {}, {}).settings.for_model("a/b").engine_sampling
    assert sampling == {"temperature": "0.7", "top_k": "20"}


def test_switches_in_a_table_of_text_are_written_as_json(file: Path) -> None:
    file.write_text('[model."a/b"]\ntemplate_kwargs = { enable_thinking = false, a = true }\n')
    kwargs = load(file, {}, {}).settings.for_model("a/b").engine_template_kwargs
    assert kwargs == {"enable_thinking": "false", "a": "true"}


def test_a_missing_file_means_the_defaults(file: Path) -> None:
    assert load(file, {}, {}).settings == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[http]\nprot = 1\n", "did you mean 'http.port'?"),
        ("[htpp]\nport = 1\n", "did you mean 'http'?"),
        ("[http]\nport = '1'\n", "http.port = '1': must be integer"),
        ("[http]\nport = 70000\n", "from 0 to 65535"),
        ("[http]\nport = true\n", "must be integer"),
        ("[log]\nlevel = 'loud'\n", "must be one of debug, info"),
        ("[engine]\nmemory_budget = '24 bananas'\n", "24GB"),
        ("[engine]\nmemory_budget = '160%'\n", "24GB"),
        ("[engine]\nmemory_budget = '24s'\n", "24GB"),
        (f"[engine]\nmemory_budget = '{'9' * 400}GB'\n", "24GB"),
        (f"[models]\nkeep_alive = {'9' * 400}\n", "30m"),
        ("[models]\nkeep_alive = 'soon'\n", "30m"),
        ("[models]\naliases = ['a']\n", "table of text"),
        ("[models]\npreload = 'a'\n", "list of text"),
        ("http = 1\n", "write [http]"),
        ("[http]\nport = 1\nport = 2\n", "not valid TOML"),
        ("[http\n", "not valid TOML"),
        ('[model."a/b"]\nkvv = "fp16"\n', "did you mean 'kv'?"),
        ('[model."a/b"]\nport = 1\n', "unknown option 'port'"),
        ("model = 1\n", "one table per model"),
    ],
)
def test_a_bad_file_is_refused_with_the_key_and_the_way_out(
    file: Path, text: str, said: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_bad_environment_variable_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match="SWIFTLM_HTTP_PORT"):
        load(file, {"SWIFTLM_HTTP_PORT": "many"}, {})


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("90s", 90.0),
        ("30m", 1800.0),
        ("2h", 7200.0),
        ("250ms", 0.25),
        ("7", 7.0),
        (5, 5.0),
        ("never", NEVER),
        (-1, NEVER),
        ("-1", NEVER),
        (0, 0.0),
    ],
)
def test_durations_are_read_in_every_spelling(value: object, seconds: float) -> None:
    assert checked(OPTIONS["models.keep_alive"], value) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("auto", None),
        ("off", 0),
        ("24GB", 24 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("8G", 8 * 10**9),
        ("60%", 600),
        ("123", 123),
    ],
)
def test_sizes_are_read_in_every_spelling(text: str, size: int | None) -> None:
    assert size_bytes(text, 1000) == size


def test_what_is_shown_of_any_default_can_be_read_back() -> None:
    for option in OPTIONS.values():
        if not option.secret:
            assert parsed(option, shown(option, option.default)) == option.default, option.key


def test_every_option_has_help_a_flag_and_a_default_of_its_own_form() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)} - {"model"}
    assert {option.name for option in OPTIONS.values()} == fields
    for option in OPTIONS.values():
        assert option.help.endswith("."), option.key
        assert option.name == option.key.replace(".", "_", 1)
        if option.form is Form.TABLE:
            assert checked(option, dict(option.default)) == option.default
        else:
            assert checked(option, option.default) == option.default, option.key


def test_api_keys_are_hashed_before_they_are_written(file: Path) -> None:
    found = set_value(file, "http.api_keys", "opensesame", {})
    assert "opensesame" not in file.read_text()
    assert found.settings.http_api_keys == (key_hash("opensesame"),)
    assert key_hash(key_hash("opensesame")) == key_hash("opensesame")
    assert key_hashes(found.settings) == key_hashes(Settings(http_api_keys=("opensesame",)))


def test_api_keys_that_an_editor_wrote_are_hashed_when_they_are_taken_over(file: Path) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    file.write_text('[http]\n# mine\napi_keys = ["opensesame"] # two\nport = 6000\n')
    live.reload()
    text = file.read_text()
    assert "opensesame" not in text
    assert key_hash("opensesame") in text
    assert "# mine" in text
    assert key_hashes(live.settings) == key_hashes(Settings(http_api_keys=("opensesame",)))
    for broken in ("[http]\napi_keys = 3\n", "http = 3\n", "[http\n"):
        file.write_text(broken)
        with pytest.raises(ConfigError):
            live.reload()
        assert file.read_text() == broken


@pytest.mark.parametrize(
    ("key", "good", "bad", "words"),
    [
        ("service.drain", "30s", "45s", "from 0 to 30"),
        ("service.drain", "0", "never", "from 0 to 30"),
        ("cluster.lost_after", "1h", "never", "from 1 to 3600"),
        ("engine.gpu_layers", "12", "foo", "all, auto or a number of layers"),
        ("engine.gpu_layers", "auto", "-1", "all, auto or a number of layers"),
        ("engine.memory_budget", "off", "0", "more than 0"),
        ("engine.memory_budget", "60%", "0 %", "more than 0"),
        ("engine.memory_budget", "1MB", "0.0GB", "more than 0"),
    ],
)
def test_a_value_that_would_fail_later_is_refused_when_it_is_set(
    file: Path, key: str, good: str, bad: str, words: str
) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    live.set(key, good)
    with pytest.raises(ConfigError, match=words):
        live.set(key, bad)
    assert live.settings == load(file, {}, {}).settings


def test_nothing_is_a_size_where_it_switches_something_off(file: Path) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    for key in ("engine.prefix_cache", "engine.prefix_disk", "engine.buffer_cache"):
        live.set(key, "0")


def test_secrets_are_never_shown() -> None:
    option = OPTIONS["http.api_keys"]
    assert "hush" not in shown(option, ("hush",))
    assert shown(option, ()) == ""


def test_setting_an_option_keeps_comments_order_and_everything_else(file: Path) -> None:
    file.write_text("# mine\n[http]\nport = 5413 # the usual\n\n[log]\n# loud\nlevel = 'info'\n")
    set_value(file, "http.port", "6000", {})
    found = set_value(file, "models.aliases", '{"gpt-*": "default"}', {})
    text = file.read_text()
    assert "# mine\n[http]\nport = 6000 # the usual" in text
    assert "# loud" in text
    assert found.settings.models_aliases == {"gpt-*": "default"}
    assert load(file, {}, {}).settings == found.settings


def test_unsetting_an_option_brings_its_default_back(file: Path) -> None:
    set_value(file, "http.port", "6000", {})
    assert unset_value(file, "http.port", {}).settings.http_port == 5413
    assert unset_value(file, "http.port", {}).settings.http_port == 5413


def test_a_bad_value_is_refused_and_the_file_stays_as_it_was(file: Path) -> None:
    file.write_text("[http]\nport = 5413\n")
    for key, value in (("http.port", "99999"), ("http.prot", "1"), ("log.level", "x")):
        with pytest.raises(ConfigError):
            set_value(file, key, value, {})
    assert file.read_text() == "[http]\nport = 5413\n"


def test_setting_what_is_set_already_does_not_touch_the_file(file: Path) -> None:
    set_value(file, "http.port", "6000", {})
    before = file.stat().st_ino
    set_value(file, "http.port", "6000", {})
    assert file.stat().st_ino == before


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(file.parent.iterdir()) == [file]


def test_two_who_set_options_at_once_both_count(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[http]\nport = 1000\n")
    from swiftlm_proto import user_files

    def other_first(*words: object) -> object:
        monkeypatch.undo()
        set_value(file, "engine.parallel", "3", {})
        return user_files._write_draft(*words)

    monkeypatch.setattr(user_files, "_write_draft", other_first)
    settings = set_value(file, "http.port", "6000", {}).settings
    assert (settings.http_port, settings.engine_parallel) == (6000, 3)


def test_line_ends_of_the_file_stay(file: Path) -> None:
    file.write_bytes(b"# mine\r\n[http]\r\nport = 1000 # why\r\n")
    set_value(file, "http.port", "6000", {})
    assert file.read_bytes() == b"# mine\r\n[http]\r\nport = 6000 # why\r\n"


def test_a_linked_config_stays_a_link(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("")
    file.symlink_to(real)
    set_value(file, "http.port", "6000", {})
    assert file.is_symlink()
    assert "6000" in real.read_text()


def test_a_models_own_table_overrides_engine_options_for_it_alone(file: Path) -> None:
    file.write_text('[engine]\ncontext = 100\n[model."a/b"]\ncontext = 200\nkeep_alive = "never"\n')
    settings = load(file, {}, {}).settings
    assert settings.for_model("a/b").engine_context == 200
    assert settings.for_model("a/b").models_keep_alive == NEVER
    assert settings.for_model("other") is settings
    assert settings.engine_context == 100


@pytest.mark.parametrize("key", ['model."a/b.1".context', "model.a/b.1.context"])
def test_what_holds_for_one_model_is_set_and_taken_out_like_any_option(
    file: Path, key: str
) -> None:
    file.write_text("# mine\n[engine]\ncontext = 100 # for all\n")
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    assert live.set(key, "200").now == ("model.a/b.1",)
    assert live.settings.for_model("a/b.1").engine_context == 200
    assert load(file, {}, {}).settings == live.settings
    (entry,) = live.entries(key)
    assert (entry.key, entry.value, entry.origin) == ('model."a/b.1".context', "200", "file")
    assert entry.default == "100"
    live.set("model.other.keep_alive", "never")
    assert [e.key for e in live.entries()][len(OPTIONS) :] == [
        'model."a/b.1".context',
        'model."other".keep_alive',
    ]
    live.unset(key)
    live.unset("model.other.keep_alive")
    assert file.read_text().strip() == "# mine\n[engine]\ncontext = 100 # for all"
    assert live.entries(key)[0].value == "100"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("model.a.contxt", "a model has no option 'contxt'; did you mean 'context'"),
        ("model.a.port", "a model has no option 'port'"),
        ("model.context", "write model."),
        ("model", "write model."),
    ],
)
def test_a_key_of_a_model_that_is_none_is_named(file: Path, key: str, message: str) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    with pytest.raises(ConfigError, match=re.escape(message)):
        live.set(key, "1")
    with pytest.raises(ConfigError, match="context = 'x'"):
        live.set("model.a.context", "x")
    assert not file.exists()


def test_a_reload_tells_what_holds_now_and_what_waits_for_a_restart(file: Path) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    file.write_text("[http]\nport = 6000\n[log]\nlevel = 'debug'\n")
    changes = live.reload()
    assert changes.now == ("log.level",)
    assert changes.after_restart == ("http.port",)
    assert live.waiting_for_restart == ("http.port",)
    assert live.settings.log_level == "debug"
    file.write_text("")
    live.reload()
    assert live.waiting_for_restart == ()


def test_a_reload_of_a_broken_file_keeps_what_was(file: Path) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    file.write_text("[http]\nport = 'x'\n")
    with pytest.raises(ConfigError):
        live.reload()
    assert live.settings == Settings()


def test_a_file_that_somebody_broke_is_known_while_the_settings_of_before_hold(
    file: Path,
) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    assert live.problem() == ""
    file.write_text("[http]\nhost = '0.0.0.0'\n")  # nobody has asked for a reload
    assert "no API key is set" in live.problem()
    with pytest.raises(ConfigError):
        live.check_file()
    file.write_text("[log]\nlevel = 'debug'\n")
    assert live.problem() == ""


def test_entries_are_all_options_or_those_of_a_table(file: Path) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    assert len(live.entries()) == len(OPTIONS)
    assert {entry.key for entry in live.entries("log")} == {"log.level", "log.access"}
    assert [entry.key for entry in live.entries("log.level")] == ["log.level"]


def test_load_options_are_laid_over_the_settings() -> None:
    options = m.LoadOptions(context=512, kv="turbo", gpu_layers=0xFFFFFFFF, keep_alive_s=7)
    found = options_over(Settings(engine_gpu_layers="3"), options)
    assert found.engine_context == 512
    assert found.engine_kv == "turbo"
    assert found.engine_gpu_layers == "all"
    auto = options_over(Settings(), m.LoadOptions(gpu_layers=0xFFFFFFFE))
    assert auto.engine_gpu_layers == "auto"
    assert found.models_keep_alive == 7.0
    assert options_over(Settings(), None) == Settings()


def test_a_load_option_of_no_use_is_refused_by_name() -> None:
    with pytest.raises(ServiceError) as caught:
        options_over(Settings(), m.LoadOptions(kv="zip"))
    assert caught.value.param == "kv"
    assert "turbo" in caught.value.message


def test_old_names_are_brought_up_to_date_once_and_the_old_file_is_kept(file: Path) -> None:
    before = "# mine\n[web]\nlisten = 6000 # old\n[log]\nlevel = 'debug'\n"
    file.write_text(before)
    renamed = {"web.listen": "http.port", "log.gone": "log.level"}
    kept = migrate(file, renamed)
    assert kept is not None
    assert kept.read_text() == before
    text = file.read_text()
    assert "# mine" in text
    assert "port = 6000" in text
    assert "listen" not in text
    assert migrate(file, renamed) is None


def test_where_old_and_new_name_are_set_the_new_one_holds(file: Path) -> None:
    file.write_text("[log]\nloud = 'error'\nlevel = 'debug'\n")
    migrate(file, {"log.loud": "log.level"})
    assert load(file, {}, {}).settings.log_level == "debug"


def test_a_public_address_without_a_key_is_a_bad_configuration() -> None:
    with pytest.raises(ConfigError, match="API key"):
        http_options(Settings(http_host="0.0.0.0"))
    assert http_options(Settings(http_host="0.0.0.0", http_api_keys=("k",))).host == "0.0.0.0"


def test_what_the_port_is_told_once_says_that_it_waits_for_a_restart() -> None:
    now = {"http.api_keys", "http.keys", "http.allowed_hosts", "http.allowed_origins"}
    at_once = {key for key, option in OPTIONS.items() if not option.needs_restart}
    assert {key for key in at_once if key.startswith("http.")} == now


def test_no_change_and_no_reload_takes_what_a_daemon_would_not_start_with(file: Path) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    with pytest.raises(ConfigError, match="no API key"):
        live.set("http.host", "0.0.0.0")
    assert not file.exists()
    live.set("http.api_keys", "k")
    live.set("http.host", "0.0.0.0")
    with pytest.raises(ConfigError, match="no API key"):
        live.unset("http.api_keys")
    assert live.settings == load(file, {}, {}).settings
    file.write_text('[http]\nhost = "0.0.0.0"\n')
    with pytest.raises(ConfigError, match="no API key"):
        live.reload()
    assert key_hashes(live.settings)
    broken = LiveConfiguration(load(file, {}, {}), {}, {})
    broken.unset("http.host")  # mends it
    assert broken.settings == Settings()


def test_changes_at_the_same_time_lose_nothing(file: Path) -> None:
    live = LiveConfiguration(load(file, {}, {}), {}, {})
    keys = [key for key, option in OPTIONS.items() if option.form is Form.DURATION]
    with ThreadPoolExecutor(len(keys)) as pool:
        list(pool.map(lambda key: live.set(key, "7"), keys))
    assert all(getattr(live.settings, OPTIONS[key].name) == 7.0 for key in keys)


@pytest.mark.parametrize("broken", ["[http]\nprot = 1\n", '[model."a"]\nport = 1\n'])
def test_a_file_that_cannot_be_read_is_not_written_to(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(broken)
    for change in (
        lambda: set_value(file, "log.level", "debug", {}),
        lambda: unset_value(file, "log.level", {}),
    ):
        with pytest.raises(ConfigError):
            change()
        assert file.read_text() == broken
    file.write_text("")
    with pytest.raises(ConfigError):
        set_value(file, "log.level", "debug", {"SWIFTLM_HTTP_PORT": "many"})
    assert file.read_text() == ""


@pytest.mark.parametrize("text", ["{temperature = 0.3}", '{"temperature": 0.3}', "temperature=0.3"])
def test_a_table_is_taken_as_toml_as_json_and_as_pairs(text: str) -> None:
    assert dict(parsed(OPTIONS["engine.sampling"], text)) == {"temperature": "0.3"}


def test_the_last_part_of_an_options_name_leads_to_the_option() -> None:
    assert "did you mean 'engine.kv'?" in str(unknown_option("kv"))
    assert "did you mean 'http.port'?" in str(unknown_option("port"))
