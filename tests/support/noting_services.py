"""Services of the admin socket that answer with nothing and note what they were asked."""

from __future__ import annotations

from swiftlmd.http.admin_operations import operation_name


def fake(base: type, asked: list[object]):
    """A service whose every call answers with an empty reply, and notes what it was asked."""
    service = base()
    for path, handler in base().__mapping__().items():
        name = operation_name(path)

        async def one(message, kind=handler.reply_type):
            asked.append(message)
            return kind()

        async def many(message, kind=handler.reply_type):
            asked.append(message)
            yield kind()

        setattr(service, name, many if handler.cardinality.server_streaming else one)
    return service
