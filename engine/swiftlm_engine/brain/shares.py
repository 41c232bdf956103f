"""How clients share what one of them could use up: the places of a line, and the time of prefill.

One client alone may hold every place. Once all are held, a client still gets one while it holds
less than its share, the limit divided by the clients that are there: so a client with a hundred
requests never shuts out another. The bound of all together stays: limit * (1 + 1/2 + 1/3 + ...).
"""

from __future__ import annotations

from collections.abc import Mapping, Set


def is_refused(limit: int, held: Mapping[str, int], client: str, wanted: int = 1) -> bool:
    """Whether `client` may not take `wanted` places more; `held` are those of each client."""
    if sum(held.values()) + wanted <= limit:
        return False
    num_clients = len(held.keys() | {client})
    return held.get(client, 0) + wanted > limit // num_clients


class PrefillTime:
    """Seconds of prefill that each client has had, as far as others were there to want them.

    Fair queueing: a client that comes begins level with the least served one, so that nobody
    saves up time by being away, nor pays for what nobody else wanted.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def keep(self, clients: Set[str]) -> None:
        """These have requests now; the others are forgotten."""
        known = {client: s for client, s in self._seconds.items() if client in clients}
        least = min(known.values(), default=0.0)
        self._seconds = {client: known.get(client, least) - least for client in clients}

    def add(self, client: str, seconds: float) -> None:
        self._seconds[client] = self._seconds.get(client, 0.0) + seconds

    def lead(self, client: str) -> float:
        """What the client has had more than the least served one."""
        return self._seconds.get(client, 0.0)
