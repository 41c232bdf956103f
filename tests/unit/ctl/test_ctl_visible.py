"""No name of a model, folder or variable moves the cursor, splits a line or breaks a service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swiftlm_proto.paths import locate
from swiftlm_proto.visible import visible, visible_json, visible_lines
from swiftlmctl import output
from swiftlmctl.errors import CtlError
from swiftlmctl.service.job import job_for

EVIL = "a\x1b]0;title\x07\nb\u202etxt\u2066\x9b31m\r\x7f\u2028\ud800"
KEPT = "Modèle 模型 \U0001f469\u200d\U0001f52c \u06be\u200c\u0627"


def test_what_hides_is_shown_and_writing_of_all_languages_stays() -> None:
    assert visible(EVIL).isprintable()
    assert visible_lines(EVIL).count("\n") == 1
    assert visible("\x1b\n\u202e") == r"\x1b\n\u202e"
    assert visible(KEPT) == visible_lines(KEPT) == KEPT
    line = visible_json(json.dumps({"a": EVIL}, ensure_ascii=False))
    assert line.isprintable()
    assert json.loads(line) == {"a": EVIL}


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_and_texts_show_no_control_characters(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: terminal)
    output.show_table(output.Table(("model",), ((EVIL,),)))
    output.say(EVIL)
    output.write(EVIL)
    output.warn(EVIL)
    output.show_json({"name": EVIL})
    output.show_json_line({"name": EVIL})
    said = capsys.readouterr()
    for line in (said.out + said.err).split("\n"):
        assert line.isprintable(), line


def test_a_styled_line_holds_no_code_but_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    output.say_in(31, EVIL)
    assert capsys.readouterr().out.count("\x1b") == 2


@pytest.mark.parametrize("name", ["HF_HOME", "XDG_CACHE_HOME"])
def test_a_service_takes_no_path_that_it_cannot_hold(name: str, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), name: "/tmp/a\nExecStartPre=/bin/true"}
    with pytest.raises(CtlError, match="control character"):
        job_for(locate(environ), environ)


def test_an_empty_home_is_no_home() -> None:
    assert not str(locate({"HOME": ""}).app).startswith(("/.local", ".local", "/Library"))
