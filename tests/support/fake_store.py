"""A Store service that knows four models of the hub; what it was asked is in `asked`."""

from __future__ import annotations

from swiftlm_proto import messages as m


def offered(name: str, verdict: str, size_bytes: int, **more: object) -> m.OfferedModel:
    fit = m.ModelFit(verdict, needed_bytes=size_bytes + 10**9, available_bytes=8 * 10**9)
    return m.OfferedModel(
        model=name, size_bytes=size_bytes, licence="apache-2.0", fit=fit,
        quantization="4 bits", **more,
    )  # fmt: skip


OFFERS = [
    offered("mlx-community/Qwen3-4B-4bit", "fits", 2_300_000_000, tools=True, reasoning=True),
    offered("mlx-community/gemma-3-12b-it-4bit", "tight", 8_000_000_000, vision=True),
    offered("mlx-community/Qwen3-30B-A3B-4bit", "streams", 17_200_000_000, tools=True),
    offered("mlx-community/Llama-3.3-70B-4bit", "too large", 39_700_000_000, gated=True),
]


class FakeStore(m.StoreBase):
    def __init__(self, offers: list[m.OfferedModel] | None = None) -> None:
        self.offers = OFFERS if offers is None else offers
        self.asked: list[object] = []

    async def search(self, message: m.SearchModelsRequest) -> m.SearchModelsReply:
        self.asked.append(message)
        found = [offer for offer in self.offers if message.text.lower() in offer.model.lower()]
        return m.SearchModelsReply(models=found)
