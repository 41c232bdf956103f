"""The model store: find, fetch, verify, adopt, remove. Nothing here loads MLX or numpy."""

from swiftlmd.store.entries import PullProgress, RemovedModel, Source, Stage, StoredModel
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.store import ModelStore

__all__ = [
    "ModelStore",
    "PullProgress",
    "RemovedModel",
    "Source",
    "Stage",
    "StoreOptions",
    "StoredModel",
]
