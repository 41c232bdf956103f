"""Reads the images of one model's prompts: `prepare` their bytes, `embed` a chunk of a prompt."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from swiftlm_engine.brain.vision import FEATURE_BYTES
from swiftlm_engine.generation import EngineFault, FaultKind
from swiftlm_engine.text.messages import Chat, ImagePart
from swiftlm_engine.vision.family import Family
from swiftlm_engine.vision.picture import BadPicture, open_picture
from swiftlm_engine.vision.prompt import PreparedImage, PromptImages


class ImageReader:
    """`prepare` runs on the tokenizer thread, the rest on the MLX thread."""

    def __init__(self, family: Family, embed_tokens: Any) -> None:
        self.family = family
        self.num_encoded = 0
        self._embed_tokens = embed_tokens
        # KV on disk outlives an upgrade that may prepare or encode pictures otherwise.
        self._versions = f"{version('mlx-vlm')} {version('pillow')}".encode()[:64]
        self._features: OrderedDict[bytes, mx.array] = OrderedDict()  # (n, D) by digest

    @property
    def nbytes(self) -> int:
        """Of the tower's weights, and of what it has made of the pictures used last."""
        weights = tree_flatten(self.family.tower.parameters())
        return sum(array.nbytes for _, array in weights) + self._held()

    def prepare(self, chat: Chat) -> tuple[PreparedImage, ...]:
        """Every image of the conversation, in order. Raises `EngineFault` naming the image."""
        parts = [part for message in chat.messages for part in message.parts]
        contents = [part.content for part in parts if isinstance(part, ImagePart)]
        return tuple(
            self._prepare(content, f"image {number} of {len(contents)}")
            for number, content in enumerate(contents, 1)
        )

    def embed(self, token_ids: Sequence[int], start: int, images: PromptImages) -> mx.array:
        """Embeddings (1, L, D) of the tokens at `start` of the prompt; lazy, but for the images."""
        rows = self._embed_tokens(mx.array([token_ids], dtype=mx.int32))
        for part in images.rows(start, start + len(token_ids)):
            features = self._encoded(part.image)[part.start : part.end]
            at = mx.array([position - start for position in part.positions])
            rows[0, at] = features.astype(rows.dtype)
        return rows

    def _prepare(self, content: bytes, name: str) -> PreparedImage:
        try:
            fitted = self.family.fit(open_picture(content))
        except BadPicture as error:
            raise EngineFault(FaultKind.INVALID, f"{name}: {error}", param="messages") from error
        digest = hashlib.blake2b(content, digest_size=32, key=self._versions).digest()
        return PreparedImage(digest, fitted.pixels, fitted.text, fitted.num_tokens)

    def _encoded(self, image: PreparedImage) -> mx.array:
        features = self._features.get(image.digest)
        if features is None:
            features = self.family.encode(mx.array(image.pixels)[None])
            mx.eval(features)  # its graph would keep the scratch of the whole tower
            self.num_encoded += 1
            self._features[image.digest] = features
        self._features.move_to_end(image.digest)
        while len(self._features) > 1 and self._held() > FEATURE_BYTES:
            self._features.popitem(last=False)
        return features

    def _held(self) -> int:
        return sum(features.nbytes for features in self._features.values())
