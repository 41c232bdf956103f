"""Where models may lie on this machine, and which of them are whole. Reads disks only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from swiftlmd.store import builtin, cache_dirs, folder, hub_cache, supported
from swiftlmd.store.folder import Inspection
from swiftlmd.store.hub_cache import CachedRepo
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.records import Pinned, Records
from swiftlmd.store.types import ModelSource, StoredModel

Signature = tuple[tuple[str, int, int], ...]


@dataclass
class LocalModels:
    """Remembers what it read of a folder for as long as names, sizes and times there are equal."""

    models_folder: Path
    options: StoreOptions
    records: Records
    _seen: dict[Path, tuple[Signature, Inspection]] = field(default_factory=dict)

    def models(self) -> list[StoredModel]:
        """By name; of two with one name, ours goes before the user's, the hub's, others'."""
        found: dict[str, StoredModel] = {}
        for model in (*self._own(), *self._users(), *self._hub(), *self._publishers()):
            found.setdefault(model.name, model)
        return sorted(found.values(), key=lambda model: model.name)

    def _own(self) -> Iterator[StoredModel]:
        for path in _folders(self.models_folder):
            source = (
                ModelSource.BUILT_IN if path.name in builtin.BUILT_INS else ModelSource.IMPORTED
            )
            yield self._stored(path.name, path, source)

    def _users(self) -> Iterator[StoredModel]:
        for added in self.records.folders.all():
            yield self._stored(added.name, Path(added.path), ModelSource.LOCAL)
        for parent in self.options.folders:
            itself = (parent / "config.json").exists()
            for path in [parent] if itself else _folders(parent):
                yield self._stored(path.name, path, ModelSource.LOCAL)

    def _hub(self) -> Iterator[StoredModel]:
        for repo in hub_cache.repos(self.options.hub_cache):
            if (model := self._hub_model(repo)) is not None:
                yield model

    def _hub_model(self, repo: CachedRepo) -> StoredModel | None:
        """None for what other programs keep there and nobody would chat with."""
        pinned = self.records.pinned.get(repo.name)
        snapshot = repo.snapshot(pinned.commit if pinned else "")
        model = self._snapshot_model(repo, snapshot, pinned) if snapshot else None
        left = repo.partial_bytes()
        if left and not (model and model.ready):
            return _unfinished(repo, snapshot, left)
        return model

    def _snapshot_model(
        self, repo: CachedRepo, snapshot: Path, pinned: Pinned | None
    ) -> StoredModel | None:
        if not (pinned or _looks_like_model(snapshot)):
            return None
        model = self._stored(repo.name, snapshot, ModelSource.HUB, self.options.hub_cache)
        if pinned and pinned.licence:  # pulls leave the card on the hub
            model = dataclasses.replace(model, licence=pinned.licence)
        if not pinned:
            strange = model.model_type and not supported.is_known(model.model_type)
            return None if strange else model
        missing = [name for name in pinned.files if not (snapshot / name).exists()]
        if not missing:
            return model
        reason = (
            f"{missing[0]} is gone from {snapshot}; `swiftlmctl pull {repo.name}` brings it back"
        )
        return dataclasses.replace(model, ready=False, reason=reason)

    def _publishers(self) -> Iterator[StoredModel]:
        for root in cache_dirs.publisher_folders(self.options.home):
            for publisher in _folders(root):
                for path in _folders(publisher):
                    if (path / "config.json").exists() or folder.has_gguf(path):
                        yield self._stored(f"{publisher.name}/{path.name}", path, ModelSource.LOCAL)

    def _stored(
        self, name: str, path: Path, source: ModelSource, root: Path | None = None
    ) -> StoredModel:
        found = self._inspection(path, root or _link_root(path))
        return StoredModel(
            name=name,
            path=path,
            source=source,
            size_bytes=found.size_bytes,
            ready=not found.reason,
            reason=found.reason,
            model_type=found.model_type,
            context=found.context,
            quantization=found.quantization,
            vision=found.vision,
            tools=found.tools,
            licence=found.licence or _built_in_licence(name, source),
            revision=path.name if source is ModelSource.HUB else "",
        )

    def _inspection(self, path: Path, root: Path) -> Inspection:
        signature = folder.signature(path)
        known = self._seen.get(path)
        if known is not None and known[0] == signature:
            return known[1]
        found = folder.inspect(path, root)
        self._seen[path] = (signature, found)
        return found


def _built_in_licence(name: str, source: ModelSource) -> str:
    return builtin.BUILT_INS[name].licence if source is ModelSource.BUILT_IN else ""


def _unfinished(repo: CachedRepo, snapshot: Path | None, left: int) -> StoredModel:
    reason = f"not complete ({left / 1e6:,.0f} MB are here); `swiftlmctl pull {repo.name}` goes on"
    return StoredModel(
        name=repo.name,
        path=snapshot or repo.root,
        source=ModelSource.HUB,
        size_bytes=left,
        ready=False,
        reason=reason,
        model_type="",
        context=0,
        quantization="",
        vision=False,
    )


def _looks_like_model(snapshot: Path) -> bool:
    """A configuration and weights, or the promise of them."""
    if not (snapshot / "config.json").exists():
        return False
    weights = (".safetensors", ".safetensors.index.json")
    return any(p.name.endswith(weights) for p in snapshot.iterdir())


def _link_root(path: Path) -> Path:
    """Links of a snapshot in the hub's layout lead to the cache around it, others nowhere."""
    return path.parents[2] if path.parent.name == "snapshots" else path


def _folders(parent: Path) -> list[Path]:
    try:
        entries = sorted(parent.iterdir())
    except OSError:
        return []
    return [p for p in entries if p.is_dir() and not p.name.startswith(".")]
