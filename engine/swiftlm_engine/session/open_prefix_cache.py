"""Opens the prefix cache with the tiers that the options ask for."""

from __future__ import annotations

import logging
from pathlib import Path

from swiftlm_engine.brain.plan.memory_terms import WRITE_BUFFER_BYTES
from swiftlm_engine.brain.prefix_folders import PrefixFolders
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.prefix.cache import PrefixCache
from swiftlm_engine.prefix.fingerprint import fingerprint_of
from swiftlm_engine.prefix.namespace import FolderInUse
from swiftlm_engine.prefix.shared_limit import SharedLimit
from swiftlm_engine.prefix.ssd import SsdLimits, SsdTier
from swiftlm_engine.ranks import SINGLE_PROCESS, Ranks
from swiftlm_engine.session.kv_format import KvCaches

log = logging.getLogger(__name__)


def open_prefix_cache(
    options: EngineOptions,
    kv: KvCaches,
    device: Device,
    template: str,
    ranks: Ranks = SINGLE_PROCESS,
) -> PrefixCache:
    """RAM only when no folder was given, or when it cannot be used (said in the log)."""
    ssd = None
    if options.prefix_cache_dir is not None and options.prefix_cache_bytes:
        # KV of another device or number type is near enough to look right and not equal.
        kv_format = f"{kv.signature}/{device}"
        if options.gpu_layers is not None:
            kv_format += f":{options.gpu_layers}"
        ssd = _ssd_tier(options, kv, options.prefix_cache_dir, template, kv_format)
    return PrefixCache(kv.make, options.prefix_cache_bytes, ssd, ranks=ranks)


def _ssd_tier(
    options: EngineOptions, kv: KvCaches, folder: Path, template: str, kv_format: str
) -> SsdTier | None:
    fingerprint = fingerprint_of(options.folder, template=template, kv_format=kv_format)
    folders = PrefixFolders(folder)
    root, max_bytes = folders.of(options.model), options.prefix_cache_dir_bytes
    limits = SsdLimits(max_bytes, queue_bytes=WRITE_BUFFER_BYTES)
    try:
        folders.trim(max_bytes)  # of all models, this one's too: nothing of it is in use yet
        shared = SharedLimit(folders, root / fingerprint.digest, max_bytes)
        return SsdTier(root, fingerprint, kv.make, limits, shared=shared)
    except (FolderInUse, OSError) as error:
        log.warning("the prefix cache stays in memory: %s", error)
        return None
