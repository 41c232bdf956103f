"""What the self-test reads: prose, numbers, a list and code, since formats fail on each apart."""

SELF_TEST_TEXT = """\
The lighthouse on the northern cape was built in 1874, after a winter in which eleven ships were
lost on the rocks within sight of the harbour. The engineer, a quiet woman from the capital who
had built two bridges and a railway station before, lived in a tent beside the foundations for
three summers. She wrote to her brother that the wind took her drawings twice, and that the second
time she climbed down to the water to get them back, because nobody would have believed the
figures without them.

The tower is 41 metres high and its walls are 3.2 metres thick at the base. Its lamp burned rape
oil until 1902, then paraffin, and has been electric since 1931; the light is seen at 19 nautical
miles. Every evening the keeper climbed 214 steps, cleaned the lens with spirit and a linen cloth,
wound the clockwork that turned it, and wrote the weather into a book. Those books are complete,
except for four days in March 1916, when the keeper was ill and his daughter, who was twelve, kept
the lamp alight but did not dare to touch the book. A historian has counted the storms in them:
1,306 in 94 years.

What does a visitor find there today?

- The lens, which weighs two tonnes and still floats on mercury.
- A room with the books, open on Sundays from 10:00 to 16:30.
- A path to the graves of the sailors, some of them without a name.

To plan a visit, one has to know the tide, because the causeway is under water for five hours. The
following lines compute when it can be crossed:

def crossings(high_tides: list[float], closed: float = 2.5) -> list[tuple[float, float]]:
    \"\"\"The hours of a day in which the causeway is dry, as pairs of start and end.\"\"\"
    dry, start = [], 0.0
    for tide in sorted(high_tides):
        if tide - closed > start:
            dry.append((start, tide - closed))
        start = tide + closed
    if start < 24.0:
        dry.append((start, 24.0))
    return dry

for begin, end in crossings([5.75, 18.1]):
    print(f"from {begin:5.2f} to {end:5.2f}: {end - begin:.1f} hours")

The last keeper retired in 1968. Asked what he missed, he said that it was not the sea, which he
could hear from his new house as well, but the sound of the clockwork, which had been the only
thing on the cape that was always on time. He had kept one of its weights, 35 kilograms of cast
iron, and used it to hold his garden gate open. "It has worked enough," he said. "Now it may stand
in the sun like me."
"""
