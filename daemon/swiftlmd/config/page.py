"""The page of docs/configuration.md: every option, from the one place that knows them."""

from __future__ import annotations

from itertools import groupby

from swiftlmd.config.settings import OPTIONS, PER_MODEL, Option
from swiftlmd.config.values import expected, shown

_INTRO = """\
# Configuration

`swiftlmctl config show --origin` prints what is in force and where each value comes from. A flag
of `swiftlmd serve` goes before `SWIFTLM_TABLE_NAME` in the environment, that before `config.toml`,
that before the default. A table `[model."NAME"]` goes before all of these for its model; only an
option of `swiftlmctl load` goes before the table. `swiftlmctl config set KEY VALUE` edits the file
and keeps its comments; `config edit` opens a copy and takes it only when it is sound. An unknown
key is an error that names the nearest one. Both tell the running daemon, as SIGHUP does (in a
terminal, SIGHUP ends it), and
say what counts at once: "restart" marks what waits for the next start of the daemon. `[engine]`
takes effect when a model is loaded.

A table `[model."NAME"]` sets, for one model: %s.
`swiftlmctl config set 'model."NAME".context' 8192` writes into it; `config show model` lists
what these tables hold.
"""


def page() -> str:
    """Markdown; `python -m swiftlmd.config.page` prints it."""
    lines = [_INTRO % ", ".join(f"`{key}`" for key in PER_MODEL)]
    for table, options in groupby(OPTIONS.values(), lambda option: option.key.partition(".")[0]):
        lines += [f"## [{table}]", "", "| option | default | what |", "|---|---|---|"]
        lines += [*(_row(option) for option in options), ""]
    return "\n".join(lines)


def _row(option: Option) -> str:
    default = shown(option, option.default)
    what = option.help + (" (restart)" if option.needs_restart else "")
    choices = " | ".join(choice or '""' for choice in option.choices)
    form = choices or expected(option)
    cells = (
        f"`{option.key.partition('.')[2]}`",
        f"`{default}`" if default else "",
        f"{what} *{form}*",
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(page(), end="")
