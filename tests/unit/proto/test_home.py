"""Without a HOME the user's own folder counts, never the root of the disk."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

import swiftlmctl.main
import swiftlmd.main
from swiftlm_proto.paths import locate, settle_home


@pytest.mark.parametrize("given", [{}, {"HOME": ""}])
def test_an_empty_home_is_the_users_own(given: dict[str, str]) -> None:
    own = pwd.getpwuid(os.getuid()).pw_dir
    environ = dict(given)
    settle_home(environ)
    assert environ == {"HOME": own}
    assert locate(dict(given), "linux").app == Path(own) / ".local/share/swiftlm"


def test_a_user_without_an_entry_gets_no_root_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    environ: dict[str, str] = {}
    settle_home(environ)
    assert environ == {"HOME": "/nonexistent"}
    assert locate({"SWIFTLM_HOME": "/srv/x"}, "linux").app == Path("/srv/x")


@pytest.mark.parametrize("program", [swiftlmd.main, swiftlmctl.main])
def test_programs_settle_it_first(program: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr("sys.argv", ["program", "--help"])
    with pytest.raises(SystemExit):
        program.main()  # type: ignore[attr-defined]  # a module
    assert str(Path.home()) == pwd.getpwuid(os.getuid()).pw_dir
