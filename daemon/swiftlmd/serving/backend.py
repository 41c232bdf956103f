"""What an HTTP dialect or the admin service may ask of the daemon; `service.Service` answers.

A Protocol, so that every dialect is tested against a scripted backend without a model.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from swiftlm_proto import messages as m


class Backend(Protocol):
    """Models by name, requests in, events out. Every method may raise `faults.ServiceError`."""

    async def named(self, model: str) -> str:
        """The model that a client's name means, by what lies here now: exact, alias, or the default
        rule."""

    async def list_models(self) -> list[m.ModelStatus]:
        """Every model on this machine, loaded or not."""

    def generate(
        self, model: str, request: m.GenerateRequest, *, route: str, client: str = ""
    ) -> AsyncGenerator[m.SequenceEvent, None]:
        """Loads the model if need be and runs the request; closing the iterator aborts it.

        Yields events of all choices; each choice ends in exactly one `finished` event (a fault
        travels inside it). Raises only before the first event.
        """

    async def tokenize(self, model: str, request: m.TokenizeRequest) -> m.TokenizeReply: ...

    async def detokenize(self, model: str, request: m.DetokenizeRequest) -> m.DetokenizeReply: ...

    async def embed(
        self, model: str, request: m.EmbedRequest, *, request_id: str = "", client: str = ""
    ) -> m.EmbedReply:
        """Listed and waited for like a generation; leaving the call ends it."""

    async def status(self) -> m.DaemonStatus:
        """What `swiftlmctl status` and `/health` show; cheap, never waits for an engine."""
