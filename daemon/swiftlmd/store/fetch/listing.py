"""One request that tells everything about a repository: commit, files, sizes, hashes, licence."""

from __future__ import annotations

from dataclasses import dataclass

from huggingface_hub import HfApi
from huggingface_hub.hf_api import ModelInfo

from swiftlmd.store.fetch import choice
from swiftlmd.store.fetch.choice import RemoteFile
from swiftlmd.store.fetch.download import persistently

LIBRARY = "swiftlm"  # how we name ourselves to the hub
_PATIENCE_S = 20.0
_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Listing:
    repo: str  # in the hub's own spelling
    commit: str
    licence: str
    gated: bool
    files: list[RemoteFile]


def list_repo(repo: str, revision: str, patience_s: float) -> Listing:
    """Raises the client's errors, and FetchFailed for names that no repository should have."""

    def ask() -> ModelInfo:
        api = HfApi(library_name=LIBRARY)
        return api.model_info(repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)

    info = persistently(ask, min(patience_s, _PATIENCE_S))
    return Listing(
        repo=str(info.id),
        commit=str(info.sha),
        licence=str(getattr(info.card_data, "license", None) or ""),
        gated=bool(info.gated),
        files=_remote_files(info),
    )


def _remote_files(info: ModelInfo) -> list[RemoteFile]:
    files = []
    for entry in info.siblings or []:
        choice.check_name(entry.rfilename)
        large = entry.lfs is not None
        digest = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id or ""
        files.append(RemoteFile(entry.rfilename, entry.size or 0, digest, large))
    return files
