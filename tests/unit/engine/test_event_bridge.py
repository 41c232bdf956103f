"""News from the MLX thread: held while a step is built, in order, none lost."""

import asyncio
import threading

from swiftlm_engine.messages import Delta, Event
from swiftlm_engine.run.event_bridge import EventBuffer, LoopThread


def said(text: str) -> Event:
    return Event("r", 0, Delta(text))


def test_held_news_leave_with_the_next_flush_in_one_message():
    sent = []
    event_buffer = EventBuffer(sent.append)
    event_buffer.buffer([said("a")])
    event_buffer.buffer([said("b")])
    assert sent == []
    event_buffer.flush()
    event_buffer.flush()
    assert sent == [[said("a"), said("b")]]


def test_what_is_told_at_once_does_not_overtake_what_is_held():
    sent = []
    event_buffer = EventBuffer(sent.append)
    event_buffer.buffer([said("a")])
    event_buffer.emit([said("b")])
    event_buffer.emit([])
    assert sent == [[said("a"), said("b")]]


async def test_courier_delivers_in_order_on_the_loops_thread_and_stops_after_the_last():
    loop, got, ended = asyncio.get_running_loop(), [], asyncio.Event()

    def deliver(number):
        got.append((number, threading.get_ident()))
        if number is None:
            ended.set()

    courier = LoopThread(loop, deliver)
    sender = threading.Thread(target=lambda: [courier.send(i) for i in (*range(500), None)])
    sender.start()
    await asyncio.wait_for(ended.wait(), 30)
    await asyncio.to_thread(sender.join)
    assert got == [(i, threading.get_ident()) for i in (*range(500), None)]
    for thread in [thread for thread in threading.enumerate() if thread.name == "courier"]:
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()
