"""Blocks: the calls that a rendered prompt spells, found with the readers that read answers."""

import re
from collections.abc import Callable, Mapping, Sequence

from swiftlm_engine.text.chat import ToolSpec
from swiftlm_engine.text.emitter import Emitter, EmitterOptions
from swiftlm_engine.text.events import TextEvent, ToolCallDelta, ToolCallStart
from swiftlm_engine.text.markers import first_marker
from swiftlm_engine.text.reader import Start
from swiftlm_engine.text.replay import FindBlock, ReplayBlock
from swiftlm_engine.text.tools.families import CallContext, call_context

# From behind the role to the end of the arguments; alone, such a text is a call too.
HARMONY_CALL = re.compile(
    r"(?:<\|start\|>assistant|^)"
    r"((?:(?!<\|start\|>)[^{}])*?to=functions\.([\w.-]+)[^{}]*?<\|message\|>)"
    r"(.*?)(?:<\|call\|>|$)",
    re.DOTALL,
)


def find_harmony_block(text: str, position: int) -> ReplayBlock | None:
    match = HARMONY_CALL.search(text, position)
    if match is None:
        return None
    return ReplayBlock(match.start(1), match.end(3), ((match[2], match[3]),))


def block_finder(
    starts_of: Callable[[CallContext], Mapping[str, Start]], tools: Sequence[ToolSpec]
) -> FindBlock:
    """Finds what the family would read as calls; control tokens stand in a prompt as text."""

    def find(text: str, position: int) -> ReplayBlock | None:
        emitter = Emitter(EmitterOptions(stream_arguments=False))
        starts = starts_of(call_context(emitter, str, tools))
        found = first_marker(text, starts, position)
        if found is None:
            return None
        place, marker = found
        reader = starts[marker].make()
        body = place if starts[marker].replay else place + len(marker)
        rest = reader.feed(text[body:])
        if rest is None:
            reader.finish(cut=True)
        calls = _calls(emitter.take())
        end = len(text) - len(rest or "") if calls else place + len(marker)
        return ReplayBlock(place, end, calls)

    return find


def _calls(events: Sequence[TextEvent]) -> tuple[tuple[str, str], ...]:
    names: list[str] = []
    arguments: list[str] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            names.append(event.name)
            arguments.append("")
        elif isinstance(event, ToolCallDelta):
            arguments[event.index] += event.arguments_fragment
    return tuple(zip(names, arguments, strict=True))
