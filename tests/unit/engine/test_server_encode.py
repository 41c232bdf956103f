"""What an engine says can always be sent: one text that cannot would end everybody's stream."""

from swiftlm_engine.messages import (
    Delta,
    EngineFault,
    Event,
    FaultKind,
    Logprob,
    Started,
    ToolCallPart,
)
from swiftlm_engine.server import wire

HALF = "not \ud800"
SENT = "not \\ud800"


def test_half_a_surrogate_pair_ends_no_stream() -> None:
    call = ToolCallPart(0, "id", HALF, HALF)
    logprob = Logprob(token_id=1, token=b"\xff", logprob=-0.5)
    news = [
        Delta(content=HALF),
        Delta(content=HALF, reasoning=HALF, tool_calls=(call,), logprobs=(logprob,)),
        Started(1, 0, HALF, False),
    ]
    message = wire.step_events([Event(f"r{i}", 0, each) for i, each in enumerate(news)])
    assert bytes(message)
    assert message.texts == [SENT]
    assert message.events[0].delta.reasoning == SENT


def test_nor_does_the_text_of_an_error() -> None:
    fault = wire.fault(EngineFault(FaultKind.INVALID, HALF, param=HALF))
    assert bytes(fault)
    assert (fault.message, fault.param) == (SENT, SENT)
