"""A model's configuration and the headers of its weights, without the weights.

`python -m swiftlmd.store.fetch.outline`: a few hundred kilobytes by range tell the planner exactly
what the model would cost. The weight files written are all header, with a hole for the data.
"""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from swiftlmd.store.fetch import choice
from swiftlmd.store.fetch.download import persistently
from swiftlmd.store.fetch.listing import LIBRARY, Listing, list_repo
from swiftlmd.store.fetch.worker import say, serve

_PARALLEL = 8
_PATIENCE_S = 20.0
_TIMEOUT_S = 15.0
_LARGEST_BYTES = 16 << 20  # tokenizers and the like are not needed for a plan
_NEEDED = ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class OutlineRequest:
    repo: str
    revision: str
    folder: str  # exists, is empty


def main() -> None:
    def subject(text: bytes) -> tuple[str, str]:
        request = OutlineRequest(**json.loads(text))
        return request.repo, request.revision

    serve(lambda text: outline(OutlineRequest(**json.loads(text))), subject)


def outline(request: OutlineRequest) -> None:
    listing = list_repo(request.repo, request.revision, _PATIENCE_S)
    folder = Path(request.folder)
    for file in listing.files:
        if file.name in (*_NEEDED, choice.INDEX) and file.size <= _LARGEST_BYTES:
            (folder / file.name).write_bytes(_content(request.repo, listing.commit, file.name))
    weights = choice.weight_files(listing.files, _indexed(folder))
    if not weights:
        raise choice.explain_no_weights(request.repo, listing.files)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(pool.map(lambda f: _write_hollow(request, listing, folder, f.name), weights))
    say(
        stage="done",
        commit=listing.commit,
        licence=listing.licence,
        gated=listing.gated,
        size_bytes=sum(f.size for f in [*weights, *choice.small_files(listing.files)]),
    )


def _indexed(folder: Path) -> list[str] | None:
    index = folder / choice.INDEX
    return choice.indexed_files(index.read_bytes()) if index.exists() else None


def _content(repo: str, commit: str, name: str) -> bytes:
    def ask() -> bytes:
        url = hf_hub_url(repo, name, revision=commit)
        headers = build_hf_headers(library_name=LIBRARY)
        response = get_session().get(url, headers=headers, timeout=_TIMEOUT_S)
        hf_raise_for_status(response)
        return bytes(response.content)

    return persistently(ask, _PATIENCE_S)


def _write_hollow(request: OutlineRequest, listing: Listing, folder: Path, name: str) -> None:
    api = HfApi(library_name=LIBRARY)
    found = persistently(
        lambda: api.parse_safetensors_file_metadata(request.repo, name, revision=listing.commit),
        _PATIENCE_S,
    )
    header: dict[str, Any] = {
        tensor: {"dtype": t.dtype, "shape": t.shape, "data_offsets": t.data_offsets}
        for tensor, t in found.tensors.items()
    }
    text = json.dumps(header).encode()
    end = max((t.data_offsets[1] for t in found.tensors.values()), default=0)
    with (folder / name).open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + end)


if __name__ == "__main__":
    main()
