"""`swiftlmd config ...`: the configuration without a running daemon; swiftlmctl calls it then.

Prints JSON: the path, and the same entries that the admin service gives.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from swiftlm_proto.exit_codes import DaemonExit
from swiftlmd.config.live import ConfigEntry, LiveConfiguration, check_file
from swiftlmd.config.load import ConfigError, load

_KEY = "as `swiftlmd config show` names it: http.port"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True)
    showing = verbs.add_parser("show", help="print all options as JSON")
    showing.add_argument("--only", default="", metavar="KEY", help="only this option, or table")
    validating = verbs.add_parser("validate", help="check the file as `serve` would")
    validating.add_argument("--file", type=Path, metavar="PATH", help="another file than that")
    setting = verbs.add_parser("set", help="set one option in the file")
    setting.add_argument("key", help=_KEY)
    setting.add_argument("value", help="as in TOML; quotes may be left off")
    unsetting = verbs.add_parser("unset", help="take one option out of the file")
    unsetting.add_argument("key", help=_KEY)


def run(arguments: argparse.Namespace, path: Path, environ: Mapping[str, str]) -> int:
    """Does what was asked and prints; BAD_CONFIG with the reason on stderr when it cannot."""
    try:
        if arguments.verb == "validate":
            print(_validated(arguments.file or path, environ))
            return DaemonExit.STAY_DOWN
        configuration = LiveConfiguration(load(path, environ, {}), environ, {})
        print(json.dumps(_answer(configuration, arguments)))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return DaemonExit.BAD_CONFIG
    return DaemonExit.STAY_DOWN


def _validated(path: Path, environ: Mapping[str, str]) -> str:
    """Raises ConfigError for what a daemon would not start with."""
    check_file(path, environ, {})
    return f"{path} is sound" if path.exists() else f"{path}: not there; all defaults"


def _answer(configuration: LiveConfiguration, arguments: argparse.Namespace) -> dict[str, object]:
    if arguments.verb == "set":
        configuration.set(arguments.key, arguments.value)
    elif arguments.verb == "unset":
        configuration.unset(arguments.key)
    key = arguments.only if arguments.verb == "show" else arguments.key
    entries = configuration.entries(key)
    return {"path": str(configuration.path), "options": [_plain(entry) for entry in entries]}


def _plain(entry: ConfigEntry) -> dict[str, object]:
    """Named as in admin.proto's ConfigEntry."""
    fields = asdict(entry)
    renamed = {"help": "description", "form": "type", "default": "default_value"}
    return {renamed.get(name, name): value for name, value in fields.items()}
