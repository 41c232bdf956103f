"""The images of one prompt: which positions they fill, and what the prefix cache knows them by."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Above every token id: no text is ever taken for a picture.
_IMAGE_BIT = 0x8000_0000


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """One image, scaled for its model. `text` takes the place of the template's mark."""

    digest: bytes  # of the bytes that the client sent, and of the versions that read them
    pixels: np.ndarray  # (H, W, 3) uint8
    text: str
    num_tokens: int
    grid: tuple[int, int] | None = None  # rows and columns, where the model tells them apart


@dataclass(frozen=True, slots=True, eq=False)
class PlacedImage:
    image: PreparedImage
    positions: Sequence[int]  # ascending; one for each of its tokens


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows [start, end) of an image's features belong at these positions of the prompt."""

    image: PreparedImage
    start: int
    end: int
    positions: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class PromptImages:
    placed: tuple[PlacedImage, ...]

    def rows(self, start: int, end: int) -> Iterator[Rows]:
        """What of which image lies in [start, end) of the prompt."""
        for one in self.placed:
            low, high = bisect_left(one.positions, start), bisect_left(one.positions, end)
            if low < high:
                yield Rows(one.image, low, high, one.positions[low:high])

    def touch(self, start: int, end: int) -> bool:
        return next(self.rows(start, end), None) is not None

    def cache_ids(self, token_ids: Sequence[int]) -> list[int]:
        """The ids with each image token replaced by one that stands for the picture's content.

        Two pictures have the same tokens; their KV must not be taken for each other's.
        """
        ids = list(token_ids)
        for one in self.placed:
            for position, key in zip(one.positions, _keys(one.image), strict=True):
                if position < len(ids):
                    ids[position] = key
        return ids

    def table(self, start: int, end: int) -> np.ndarray:
        """Time, row and column (3, L) of the tokens in [start, end) of the prompt and what follows.

        A picture begins one past what stands before it, and takes as many places as its longer
        side has tokens.
        """
        index = np.arange(start, end)
        at = np.stack([index, index, index])
        for one in self.placed:
            if one.image.grid is None:
                continue
            rows, columns = one.image.grid
            first, past = one.positions[0], one.positions[0] + rows * columns
            inside = (first <= index) & (index < past)
            nth = index[inside] - first
            begin = at[0, inside] - nth
            at[:, inside] = begin + np.stack([0 * nth, nth // columns, nth % columns])
            at[:, index >= past] += max(rows, columns) - rows * columns
        return at

    @property
    def shift(self) -> int:
        """What is to be added to the index of a token after all images to get its position."""
        grids = [one.image.grid for one in self.placed if one.image.grid is not None]
        return sum(max(rows, columns) - rows * columns for rows, columns in grids)


def place(
    token_ids: Sequence[int], image_token_id: int, images: Sequence[PreparedImage]
) -> PromptImages | None:
    """Gives each image its positions, in order; None where the tokens are not theirs alone."""
    positions = [i for i, token_id in enumerate(token_ids) if token_id == image_token_id]
    if len(positions) != sum(image.num_tokens for image in images):
        return None
    placed, at = [], 0
    for image in images:
        placed.append(PlacedImage(image, positions[at : at + image.num_tokens]))
        at += image.num_tokens
    return PromptImages(tuple(placed))


def _keys(image: PreparedImage) -> list[int]:
    stream = hashlib.shake_128(image.digest).digest(4 * image.num_tokens)
    return [_IMAGE_BIT | key for key in array("I", stream)]
