"""Where models may lie on this machine, and which of them are whole. Reads disks only."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from swiftlmd.store import builtin, cache_dirs, folder, hub_cache, names, supported
from swiftlmd.store.folder import Inspection
from swiftlmd.store.hub_cache import CachedRepo
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.reader import STILL_READING, FolderReader
from swiftlmd.store.records import Pinned, Records
from swiftlmd.store.types import ModelSource, StoredModel

log = logging.getLogger(__name__)

Signature = tuple[tuple[str, int, int], ...]


# What systems put on every disk, in a folder of models as well.
_NO_MODELS = frozenset({
    "lost+found", "$RECYCLE.BIN", "System Volume Information", "@eaDir", "#recycle", "__MACOSX",
})  # fmt: skip


@dataclass
class LocalModels:
    """Remembers what it read of a folder for as long as names, sizes and times there are equal."""

    models_folder: Path
    options: StoreOptions
    records: Records
    reader: FolderReader = field(default_factory=FolderReader)
    _seen: dict[Path, tuple[Signature, Inspection]] = field(default_factory=dict)
    _warned: set[Path] = field(default_factory=set)

    def models(self) -> list[StoredModel]:
        """By name. Of two with one name, ours goes before the user's, the hub's, others'; a whole
        one before a broken one; a folder of the user's gets its parent's name in front instead.
        """
        found: dict[str, StoredModel] = {}
        renamed: list[StoredModel] = []
        for model in (*self._own(), *self._users(), *self._hub(), *self._publishers()):
            other = found.setdefault(model.name, model)
            if other is model or other.path == model.path:
                continue
            if model.source is ModelSource.LOCAL and model.path.name == model.name:
                renamed.append(model)
            elif model.ready and not other.ready:
                found[model.name] = model
        for model in renamed:
            name = _free_name(model, found)
            found[name] = dataclasses.replace(model, name=name)
        return sorted(found.values(), key=lambda model: model.name)

    def absent(self) -> tuple[Path, ...]:
        """Folders of the user's that are not there: a disk was unplugged, or a name mistyped."""
        return tuple(path for path in self.options.folders if not path.exists())

    def _own(self) -> Iterator[StoredModel]:
        for path in self._folders(self.models_folder):
            source = (
                ModelSource.BUILT_IN if path.name in builtin.BUILT_INS else ModelSource.IMPORTED
            )
            yield self._stored(path.name, path, source)

    def _users(self) -> Iterator[StoredModel]:
        for added in self.records.folders.all():
            yield self._stored(added.name, Path(added.path), ModelSource.LOCAL)
        for parent in self.options.folders:
            try:
                paths = [parent] if (parent / "config.json").exists() else _folders(parent)
            except OSError as error:
                yield _broken(parent.name, parent, ModelSource.LOCAL, error)
                continue
            for path in paths:
                yield self._stored(path.name, path, ModelSource.LOCAL)

    def _hub(self) -> Iterator[StoredModel]:
        try:
            repos = list(hub_cache.repos(self.options.hub_cache))
        except OSError as error:
            self._warn(self.options.hub_cache, error)
            return
        for repo in repos:
            try:
                model = self._hub_model(repo)
            except OSError as error:
                model = _broken(repo.name, repo.root, ModelSource.HUB, error)
            if model is not None:
                yield model

    def _hub_model(self, repo: CachedRepo) -> StoredModel | None:
        """None for what other programs keep there and nobody would chat with."""
        model = self._best_snapshot(repo)
        left = repo.partial_bytes()
        if left and not (model and model.ready):
            return _unfinished(repo, model.path if model else None, left)
        return model

    def _best_snapshot(self, repo: CachedRepo) -> StoredModel | None:
        """The pinned commit, else the first that is whole: other programs touch newer ones without
        fetching them, and what is whole must not vanish for it."""
        pinned = self.records.pinned.get(repo.name)
        best: StoredModel | None = None
        for snapshot in repo.snapshots(pinned.commit if pinned else ""):
            mine = pinned if pinned and snapshot.name == pinned.commit else None
            model = self._snapshot_model(repo, snapshot, mine)
            if model is not None and model.ready:
                return model
            best = best or model
            if best and mine and mine.revision not in ("", mine.commit, names.DEFAULT_REVISION):
                break  # another revision than the one that was asked for is another model
        return best

    def _snapshot_model(
        self, repo: CachedRepo, snapshot: Path, pinned: Pinned | None
    ) -> StoredModel | None:
        try:
            if not (pinned or _looks_like_model(snapshot)):
                return None
            missing = [n for n in pinned.files if not (snapshot / n).exists()] if pinned else []
        except OSError as error:
            return _broken(repo.name, snapshot, ModelSource.HUB, error)
        model = self._stored(
            repo.name, snapshot, ModelSource.HUB, (self.options.hub_cache, repo.root)
        )
        if pinned and pinned.licence:  # pulls leave the card on the hub
            model = dataclasses.replace(model, licence=pinned.licence)
        if not pinned:
            strange = model.model_type and not supported.is_known(model.model_type)
            return None if strange else model
        if not missing:
            return model
        reason = (
            f"{missing[0]} is gone from {snapshot}; `swiftlmctl pull {repo.name}` brings it back"
        )
        return dataclasses.replace(model, ready=False, reason=folder.plain(reason))

    def _publishers(self) -> Iterator[StoredModel]:
        for root in cache_dirs.publisher_folders(self.options.home):
            for publisher in self._folders(root):
                try:
                    found = [path for path in _folders(publisher) if _has_model(path)]
                except OSError as error:
                    yield _broken(publisher.name, publisher, ModelSource.LOCAL, error)
                    continue
                for path in found:
                    yield self._stored(f"{publisher.name}/{path.name}", path, ModelSource.LOCAL)

    def _folders(self, parent: Path) -> list[Path]:
        try:
            return _folders(parent)
        except OSError as error:
            self._warn(parent, error)
            return []

    def _warn(self, parent: Path, error: OSError) -> None:
        """Once: lists are asked for every few seconds."""
        if parent not in self._warned:
            self._warned.add(parent)
            log.warning("%s cannot be listed: %s", parent, error)

    def _stored(
        self, name: str, path: Path, source: ModelSource, roots: tuple[Path, ...] = ()
    ) -> StoredModel:
        found = self._inspection(path, roots or _link_roots(path))
        return StoredModel(
            name=folder.plain(name),
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
            reasoning=found.reasoning,
            licence=found.licence or _built_in_licence(name, source),
            revision=path.name if source is ModelSource.HUB else "",
        )

    def _inspection(self, path: Path, roots: tuple[Path, ...]) -> Inspection:
        try:
            signature = folder.signature(path)
        except OSError as error:
            return folder.unreadable(path, error)
        known = self._seen.get(path)
        if known is not None and known[0] == signature:
            return known[1]
        found = self.reader.read(path, signature, lambda: folder.inspect(path, *roots))
        if not found.reason.endswith(STILL_READING):
            self._seen[path] = (signature, found)
        return found


def _built_in_licence(name: str, source: ModelSource) -> str:
    return builtin.BUILT_INS[name].licence if source is ModelSource.BUILT_IN else ""


def _unfinished(repo: CachedRepo, snapshot: Path | None, left: int) -> StoredModel:
    reason = f"not complete ({left / 1e6:,.0f} MB are here); `swiftlmctl pull {repo.name}` goes on"
    return _not_ready(repo.name, snapshot or repo.root, ModelSource.HUB, reason, left)


def _broken(name: str, path: Path, source: ModelSource, error: OSError) -> StoredModel:
    return _not_ready(name, path, source, folder.unreadable(path, error).reason)


def _not_ready(
    name: str, path: Path, source: ModelSource, reason: str, size_bytes: int = 0
) -> StoredModel:
    return StoredModel(
        name=folder.plain(name),
        path=path,
        source=source,
        size_bytes=size_bytes,
        ready=False,
        reason=reason,
        model_type="",
        context=0,
        quantization="",
        vision=False,
    )


def _free_name(model: StoredModel, taken: Collection[str]) -> str:
    """`PARENT/NAME`, numbered if that is another model's."""
    name = folder.plain(f"{model.path.parent.name}/{model.path.name}")
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(x for x in itertools.chain([name], numbered) if x not in taken)


def _has_model(path: Path) -> bool:
    """Or it cannot be told."""
    try:
        return (path / "config.json").exists() or folder.has_gguf(path)
    except OSError:
        return True


def _looks_like_model(snapshot: Path) -> bool:
    """A configuration and weights, or the promise of them."""
    if not (snapshot / "config.json").exists():
        return False
    weights = (".safetensors", ".safetensors.index.json")
    return any(p.name.endswith(weights) and p.name[0] != "." for p in snapshot.iterdir())


def _link_roots(path: Path) -> tuple[Path, ...]:
    """Links of a snapshot in the hub's layout lead to the cache around it, or to its repository
    where that was moved; others nowhere."""
    return (path.parents[2], path.parents[1]) if path.parent.name == "snapshots" else (path,)


def _folders(parent: Path) -> list[Path]:
    """Raises OSError where they cannot be listed."""
    found = hub_cache.listed_folders(parent)
    return [p for p in found if not p.name.startswith(".") and p.name not in _NO_MODELS]
