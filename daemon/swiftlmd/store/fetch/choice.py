"""Which files of a repository a load needs. Everything else stays on the hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath

from swiftlmd.store.fetch.failure import FetchFailed, Reason

INDEX = "model.safetensors.index.json"
_SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "*.tiktoken",
    "tiktoken.model",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository, as the hub lists it."""

    name: str
    size: int
    digest: str  # of the content: sha256 for large files, git's sha1 for small ones
    large: bool


def small_files(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Configuration, tokenizer and index: what decides the rest."""
    return [f for f in files if f.name == INDEX or any(fnmatch(f.name, p) for p in _SMALL)]


def weight_files(files: Sequence[RemoteFile], indexed: Sequence[str] | None) -> list[RemoteFile]:
    """The index's files where there is one, else model.safetensors, else every such file."""
    by_name = {f.name: f for f in files}
    if indexed is not None:
        if missing := sorted(set(indexed) - by_name.keys()):
            raise FetchFailed(Reason.NO_WEIGHTS, f"the index names {missing[0]}, not on the hub")
        return [by_name[name] for name in sorted(set(indexed))]
    if "model.safetensors" in by_name:
        return [by_name["model.safetensors"]]
    for pattern in ("model*.safetensors", "*.safetensors"):
        if found := [f for f in files if "/" not in f.name and fnmatch(f.name, pattern)]:
            return found
    return []


def indexed_files(content: bytes) -> list[str]:
    """The weight files that an index names."""
    try:
        names = sorted({str(name) for name in json.loads(content)["weight_map"].values()})
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise FetchFailed(Reason.CORRUPT, f"{INDEX} is not an index") from error
    for name in names:
        check_name(name)
    return names


def included_files(files: Sequence[RemoteFile], patterns: Sequence[str]) -> list[RemoteFile]:
    found = [f for f in files if any(fnmatch(f.name, p) for p in patterns)]
    if patterns and not found:
        raise FetchFailed(Reason.ABSENT, f"no file matches {', '.join(patterns)}")
    return found


def explain_no_weights(repo: str, files: Sequence[RemoteFile]) -> FetchFailed:
    ggufs = [f.name for f in files if f.name.endswith(".gguf")]
    if ggufs:
        listed = ", ".join(ggufs[:4]) + (", ..." if len(ggufs) > 4 else "")
        message = f"'{repo}' holds GGUF files; choose one with --include NAME: {listed}"
    elif any(f.name.endswith(_PICKLES) for f in files):
        message = f"'{repo}' has pickled weights only; swiftlm loads safetensors and nothing else"
    else:
        message = f"'{repo}' has no weights; looked for {INDEX} and *.safetensors"
    return FetchFailed(Reason.NO_WEIGHTS, message)


def check_name(name: str) -> None:
    """A hub that lists `../../x` or `/x` gets no further; nor one with names for a terminal."""
    path = PurePosixPath(name)
    strange = path.is_absolute() or ".." in path.parts or "\\" in name or not name.isprintable()
    if strange or not name or name != str(path):
        raise FetchFailed(Reason.UNSAFE, f"the hub lists a file with an unsafe name: {name!r}")
