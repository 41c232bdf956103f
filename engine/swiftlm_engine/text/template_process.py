"""Renders chat templates in a process of its own: a template is foreign code that may hang, crash
or eat memory, and no exception can tell of that."""

from __future__ import annotations

import json
import sys

from swiftlm_engine.isolation.serve import Handler, serve
from swiftlm_engine.text.template_environment import render

MEMORY_BYTES = 2 << 30
MAX_REASON = 500  # characters; a template may raise whole conversations


def _handler(first: bytes) -> Handler:
    sources: list[str] = json.loads(first)

    def answer(asked: bytes) -> bytes:
        question = json.loads(asked)
        del asked
        try:
            text = render(
                sources[question["template"]], question["messages"], question["variables"]
            )
            return b"+" + text.encode("utf-8", "surrogatepass")
        except (RecursionError, OverflowError, MemoryError) as error:
            return f"!{type(error).__name__}".encode()
        except Exception as error:
            return f"-{error}"[: MAX_REASON + 1].encode("utf-8", "replace")

    return answer


def main() -> None:
    sys.set_int_max_str_digits(640)  # no number of a template is longer
    serve(_handler, MEMORY_BYTES, nice=0)  # a first token waits for it
