"""Where prefill pauses so that the prefix cache can keep a state to come back to.

KV of full attention serves any shorter prefix, so such models never pause. A recurrent state or a
window that slid serves exactly the position it was saved at: there the pauses decide what the next
request can reuse. A prompt without boundaries (no conversation) is not paused for; of the ends that
its chunks have anyway some are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

# A pause costs one more pass over the weights; what it saves is at most the tokens behind it.
MIN_GAP = 64
MAX_CHECKPOINTS = 4


def checkpoints(boundaries: Sequence[int], num_prefill: int) -> tuple[int, ...]:
    """The boundaries worth a pause, ascending.

    Always the last one (before the answer's opener, where the next turn's prompt still agrees when
    thinking is dropped from history) and the first one of some length (the system prompt, which
    conversations share); between them the latest, as an edited last message comes back to those.
    """
    inside = [b for b in boundaries if 0 < b <= num_prefill]
    if not inside:
        return ()
    kept = [inside[-1]]
    shared = next((b for b in inside if b >= MIN_GAP), inside[-1])
    for boundary in reversed(inside[:-1]):
        is_apart = kept[-1] - boundary >= MIN_GAP
        if boundary > shared and is_apart and len(kept) < MAX_CHECKPOINTS - 1:
            kept.append(boundary)
    if shared < kept[-1]:  # however short the question: others share what is before it
        kept.append(shared)
    return tuple(reversed(kept))


def shared_length(boundaries: Sequence[int]) -> int:
    """Of what conversations share: the system prompt. A single boundary ends the only message."""
    return next((b for b in boundaries[:-1] if b >= MIN_GAP), 0)


def is_kept_on_the_way(start: int, end: int, num_prefill: int) -> bool:
    """Whether the end of a chunk is the first behind a half, three quarters or seven eighths.

    Prompts that begin alike mostly part near their ends: behind a document, or some examples.
    """
    return end >= MIN_GAP and _halvings(end, num_prefill) > _halvings(start, num_prefill)


def _halvings(done: int, num_prefill: int) -> int:
    """How often what is left has been halved, as far as it counts."""
    share = num_prefill // max(1, num_prefill - done)
    return min(MAX_CHECKPOINTS, share.bit_length()) - 1
