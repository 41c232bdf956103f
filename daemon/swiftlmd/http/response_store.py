"""Finished responses, kept in memory so that `previous_response_id` can continue them.

Bounded by count and by bytes; the response that was used longest ago goes first. Nothing is
written to disk, and a restart forgets all.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from swiftlmd.http.openai_json import dumps

Item = dict[str, Any]  # Any: an item as the client or we wrote it


@dataclass(frozen=True, slots=True)
class StoredResponse:
    body: dict[str, Any]  # Any: the response object as it was sent
    input_items: list[Item]  # the whole conversation before the output
    size_bytes: int

    @property
    def conversation(self) -> list[Item]:
        output: list[Item] = self.body["output"]
        return self.input_items + output


class ResponseStore:
    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        # Items by their ids, from every kept response that has them: one may go before another.
        self._items: dict[str, dict[str, Item]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, response_id: str) -> StoredResponse | None:
        stored = self._kept.get(response_id)
        if stored is not None:
            self._kept.move_to_end(response_id)
        return stored

    def item(self, item_id: str) -> Item | None:
        """An item of any kept conversation."""
        holders = self._items.get(item_id)
        return None if holders is None else next(reversed(holders.values()))

    def put(self, body: dict[str, Any], input_items: list[Item]) -> None:
        """Keeps a response, unless it alone is larger than the whole store may be."""
        size = len(dumps(body)) + len(dumps(input_items))
        if size > self._max_bytes:
            return
        self.remove(body["id"])
        self._kept[body["id"]] = stored = StoredResponse(body, input_items, size)
        for item in stored.conversation:
            if isinstance(item_id := item.get("id"), str):
                self._items.setdefault(item_id, {})[body["id"]] = item
        self.size_bytes += size
        while self.size_bytes > self._max_bytes or len(self._kept) > self._max_responses:
            self.remove(next(iter(self._kept)))

    def remove(self, response_id: str) -> bool:
        stored = self._kept.pop(response_id, None)
        if stored is None:
            return False
        self.size_bytes -= stored.size_bytes
        for item in stored.conversation:
            self._forget(item.get("id"), response_id)
        return True

    def _forget(self, item_id: object, response_id: str) -> None:
        holders = self._items.get(item_id) if isinstance(item_id, str) else None
        if holders is None or not isinstance(item_id, str):
            return
        holders.pop(response_id, None)
        if not holders:
            del self._items[item_id]
