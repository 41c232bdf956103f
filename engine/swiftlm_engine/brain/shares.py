"""Who may take a place of a full line.

One client alone may hold every place. Once all are held, a client still gets one while it holds
less than its share, the limit divided by the clients that are there: so a client with a hundred
requests never shuts out another. The bound of all together stays: limit * (1 + 1/2 + 1/3 + ...).
"""

from __future__ import annotations

from collections.abc import Mapping


def is_refused(limit: int, held: Mapping[str, int], client: str, wanted: int = 1) -> bool:
    """Whether `client` may not take `wanted` places more; `held` are those of each client."""
    if sum(held.values()) + wanted <= limit:
        return False
    num_clients = len(held.keys() | {client})
    return held.get(client, 0) + wanted > limit // num_clients
