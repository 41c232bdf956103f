"""The model store: find, fetch, verify, adopt, remove. Nothing here loads MLX or numpy."""

from swiftlmd.store.options import StoreOptions
from swiftlmd.store.store import ModelStore
from swiftlmd.store.types import ModelSource, PullProgress, RemovedModel, Stage, StoredModel

__all__ = [
    "ModelSource",
    "ModelStore",
    "PullProgress",
    "RemovedModel",
    "Stage",
    "StoreOptions",
    "StoredModel",
]
