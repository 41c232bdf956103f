"""Where models may lie on this machine, and which of them are whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from swiftlm_proto.paths import Paths
from swiftlmd.store import builtin, folder
from swiftlmd.store.entries import Source, StoredModel
from swiftlmd.store.options import StoreOptions


def models(paths: Paths, options: StoreOptions) -> list[StoredModel]:
    """By name; where two places hold the same name, our own folder goes first."""
    found: dict[str, StoredModel] = {}
    for model in (*_own(paths.models), *_local(options.model_dirs)):
        found.setdefault(model.name, model)
    return sorted(found.values(), key=lambda model: model.name)


def _own(models_folder: Path) -> Iterator[StoredModel]:
    for path in _folders(models_folder):
        source = Source.BUILT_IN if path.name in builtin.BUILT_INS else Source.IMPORTED
        yield _stored(path.name, path, source)


def _local(parents: tuple[Path, ...]) -> Iterator[StoredModel]:
    """A model's own folder, or a folder of model folders."""
    for parent in parents:
        itself = (parent / "config.json").exists()
        for path in [parent] if itself else _folders(parent):
            yield _stored(path.name, path, Source.LOCAL)


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(p for p in parent.iterdir() if p.is_dir() and not p.name.startswith("."))


def _stored(name: str, path: Path, source: Source) -> StoredModel:
    facts = folder.inspect(path, path)
    return StoredModel(
        name=name,
        path=path,
        source=source,
        size_bytes=facts.size_bytes,
        ready=not facts.reason,
        reason=facts.reason,
        model_type=facts.model_type,
        context=facts.context,
        quantization=facts.quantization,
        vision=facts.vision,
    )
