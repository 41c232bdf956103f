"""Reads the images of one model's prompts: prepares their bytes, and shows them to its passes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from swiftlm_engine.brain.vision import FEATURE_BYTES, PREPARED_BYTES
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.text.chat import Chat, ImagePart
from swiftlm_engine.vision.family import VisionFamily
from swiftlm_engine.vision.picture import MAX_REQUEST_PIXELS, BadPicture, count_pixels, open_picture
from swiftlm_engine.vision.placement import DeepRows
from swiftlm_engine.vision.prompt import PreparedImage, PromptImages


class ImageReader:
    """`prepare` runs on one thread, that of pictures; the rest on the MLX thread."""

    def __init__(self, family: VisionFamily, embed_tokens: Any) -> None:
        self.family = family
        self.num_encoded = 0
        self.num_decoded = 0
        self._embed_tokens = embed_tokens
        weights = tree_flatten(family.tower.parameters())
        self._tower_nbytes = sum(array.nbytes for _, array in weights)
        # KV on disk outlives an upgrade that may prepare or encode pictures otherwise.
        self._versions = f"{version('mlx-vlm')} {version('pillow')}".encode()[:64]
        self._features: OrderedDict[bytes, mx.array] = OrderedDict()  # by digest
        self._prepared: OrderedDict[bytes, PreparedImage] = OrderedDict()  # by digest

    @property
    def nbytes(self) -> int:
        """Of the tower's weights, and of what it has made of the pictures used last."""
        return self._tower_nbytes + self._held()

    def prepare(self, chat: Chat) -> Generator[None, None, tuple[PreparedImage, ...]]:
        """Every image of the conversation, in order. Pauses after each, so that others' pictures
        and an abort come between two of them. Raises `EngineFault` naming the image."""
        parts = [part for message in chat.messages for part in message.parts]
        contents = [part.content for part in parts if isinstance(part, ImagePart)]
        names = [f"image {number} of {len(contents)}" for number in range(1, len(contents) + 1)]
        digests = [self._digest(content) for content in contents]
        _check_pixels(dict(zip(digests, zip(contents, names, strict=True), strict=True)))
        images = []
        for digest, content, name in zip(digests, contents, names, strict=True):
            images.append(self._prepare(digest, content, name))
            yield
        return tuple(images)

    @contextmanager
    def prompt_pass(
        self, token_ids: Sequence[int], start: int, images: PromptImages
    ) -> Iterator[dict[str, mx.array]]:
        """Arguments of the pass over these tokens, which stand at `start` of the prompt."""
        placement = self.family.placement
        if placement is None:
            yield self._embeddings(token_ids, start, images)[0]
            return
        try:
            arguments, placement.deep = self._embeddings(token_ids, start, images)
            table = images.table(start, start + len(token_ids))
            placement.chunk = mx.array(table, dtype=mx.float32)
            yield arguments
        finally:
            placement.clear()

    @contextmanager
    def decode_pass(self, rows: Sequence[PromptImages | None]) -> Iterator[None]:
        """A step of these rows, in their order."""
        shifts = [0 if images is None else images.shift for images in rows]
        placement = self.family.placement
        if placement is None or not any(shifts):
            yield
            return
        try:
            placement.shift = mx.array(shifts)
            yield
        finally:
            placement.clear()

    def _embeddings(
        self, token_ids: Sequence[int], start: int, images: PromptImages
    ) -> tuple[dict[str, mx.array], DeepRows | None]:
        """Lazy, but for the images; nothing where no image lies in this part of the prompt."""
        parts = list(images.rows(start, start + len(token_ids)))
        if not parts:
            return {}, None
        at = mx.array([position - start for part in parts for position in part.positions])
        features = mx.concatenate(
            [self._encoded(part.image)[:, part.start : part.end] for part in parts], axis=1
        )
        ids = mx.array([token_ids], dtype=mx.int32)
        rows = self._embed_tokens(ids)  # (1, L, D)
        rows[0, at] = features[0].astype(rows.dtype)
        deep = DeepRows(at, features[1:]) if len(features) > 1 else None
        return {"input_embeddings": rows, **self.family.arguments(ids)}, deep

    def _digest(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, digest_size=32, key=self._versions).digest()

    def _prepare(self, digest: bytes, content: bytes, name: str) -> PreparedImage:
        image = self._prepared.get(digest)
        if image is None:
            with _naming(name):
                fitted = self.family.fit(open_picture(content))
            self.num_decoded += 1
            image = PreparedImage(
                digest, fitted.pixels, fitted.text, fitted.num_tokens, fitted.grid
            )
            self._prepared[digest] = image
        self._prepared.move_to_end(digest)
        while sum(one.pixels.nbytes for one in self._prepared.values()) > PREPARED_BYTES:
            self._prepared.popitem(last=False)
        return image

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


def _check_pixels(pictures: dict[bytes, tuple[bytes, str]]) -> None:
    """Before one is decoded: a picture that comes several times is decoded once."""
    total = 0
    for content, name in pictures.values():
        with _naming(name):
            total += count_pixels(content)
            if total > MAX_REQUEST_PIXELS:
                millions = MAX_REQUEST_PIXELS // 1_000_000
                raise BadPicture(
                    f"the pictures up to here hold more than {millions} million pixels; "
                    "scale them down, or send fewer"
                )


@contextmanager
def _naming(image: str) -> Iterator[None]:
    try:
        yield
    except BadPicture as error:
        raise EngineFault(FaultKind.INVALID, f"{image}: {error}", param="messages") from error
