"""Fetch one model: list, choose, check the room, download in parallel, verify, link."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants
from huggingface_hub.hf_api import ModelInfo

from swiftlmd.store.fetch import choice
from swiftlmd.store.fetch.cache import RepoCache
from swiftlmd.store.fetch.choice import RemoteFile
from swiftlmd.store.fetch.download import Downloader, persistently
from swiftlmd.store.fetch.failure import FetchFailed, Reason, explained
from swiftlmd.store.fetch.request import Request

_LISTING_PATIENCE_S = 20.0
_LISTING_TIMEOUT_S = 15.0
_TICK_S = 0.2
_WATCH_PARENT_S = 0.5


def main() -> None:
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    request = Request.from_json(sys.stdin.buffer.read())
    try:
        fetch(request)
    except Exception as error:  # the process's root: whatever it is, the daemon gets one line
        failure = error if isinstance(error, FetchFailed) else _explained(error, request)
        say(stage="error", reason=failure.reason, message=str(failure))
        _leave(1)
    _leave(0)


def fetch(request: Request) -> None:
    cache = RepoCache(Path(request.cache), request.repo)
    say(stage="resolve")
    info = persistently(lambda: _listing(request), min(request.patience_s, _LISTING_PATIENCE_S))
    files = _remote_files(info)
    commit = str(info.sha)
    cache.prepare()
    downloader = Downloader(request.repo, commit, cache, request.patience_s, request.recheck)
    small = choice.small_files(files)
    extra = choice.included_files(files, request.include)
    ahead = [f for f in small if f.name == choice.INDEX]
    for index in ahead:  # its content decides which weights are needed
        downloader.fetch(index)
    indexed = _indexed(cache.blob(ahead[0])) if ahead else None
    wanted = _wanted(request, files, small, extra, indexed)
    _check_room(request, cache, wanted)
    _announce(info, wanted)
    _download(request, downloader, wanted)
    snapshot = cache.link(commit, request.revision, wanted)
    say(stage="done", path=str(snapshot), commit=commit)


def _wanted(
    request: Request,
    files: list[RemoteFile],
    small: list[RemoteFile],
    extra: list[RemoteFile],
    indexed: list[str] | None,
) -> list[RemoteFile]:
    """By size, so that a model's shape is known long before its weights are here."""
    ggufs = [f for f in extra if f.name.endswith(".gguf")]
    if ggufs:
        chosen = ggufs
    elif weights := choice.weight_files(files, indexed):
        chosen = [*small, *weights, *extra]
    else:
        raise choice.explain_no_weights(request.repo, files)
    unique = {f.name: f for f in chosen}
    return sorted(unique.values(), key=lambda f: (f.size, f.name))


def _listing(request: Request) -> ModelInfo:
    return HfApi(library_name="swiftlm").model_info(
        request.repo, revision=request.revision, files_metadata=True, timeout=_LISTING_TIMEOUT_S
    )


def _remote_files(info: ModelInfo) -> list[RemoteFile]:
    files = []
    for entry in info.siblings or []:
        choice.check_name(entry.rfilename)
        large = entry.lfs is not None
        digest = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id or ""
        files.append(RemoteFile(entry.rfilename, entry.size or 0, digest, large))
    return files


def _indexed(path: Path) -> list[str]:
    try:
        names = set(json.loads(path.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise FetchFailed(Reason.CORRUPT, f"{choice.INDEX} is not an index") from error
    for name in names:
        choice.check_name(str(name))
    return sorted(map(str, names))


def _check_room(request: Request, cache: RepoCache, wanted: list[RemoteFile]) -> None:
    missing = sum(f.size - cache.present_bytes(f) for f in wanted)
    free = cache.free_bytes()
    if missing + request.spare_bytes > free:
        raise FetchFailed(
            Reason.DISK_FULL,
            f"'{request.repo}' needs {missing / 1e9:.1f} GB more in {request.cache}, "
            f"{free / 1e9:.1f} GB are free and {request.spare_bytes / 1e9:.1f} GB must stay free",
        )


def _announce(info: ModelInfo, wanted: list[RemoteFile]) -> None:
    say(
        stage="files",
        commit=info.sha,
        licence=str(getattr(info.card_data, "license", None) or ""),
        total_bytes=sum(f.size for f in wanted),
        files=[{"name": f.name, "size": f.size, "digest": f.digest} for f in wanted],
    )


def _download(request: Request, downloader: Downloader, wanted: list[RemoteFile]) -> None:
    with ThreadPoolExecutor(request.parallel) as pool:
        running: set[Future[None]] = {pool.submit(downloader.fetch, f) for f in wanted}
        while running:
            done, running = wait(running, timeout=_TICK_S, return_when=FIRST_EXCEPTION)
            for future in done:
                if error := future.exception():
                    _fail(error, request)
            _report(downloader.cache, wanted, running=bool(running))


def _report(cache: RepoCache, wanted: list[RemoteFile], *, running: bool) -> None:
    done = sum(cache.present_bytes(f) for f in wanted)
    total = sum(f.size for f in wanted)
    late = next((f.name for f in wanted if not cache.is_whole(f)), "")
    verifying = running and done == total
    say(
        stage="verify" if verifying else "download", done_bytes=done, total_bytes=total, detail=late
    )


def _fail(error: BaseException, request: Request) -> None:
    """One file failed: the others stop with the process, what they have stays for the next."""
    if not isinstance(error, Exception):
        raise error
    failure = error if isinstance(error, FetchFailed) else _explained(error, request)
    say(stage="error", reason=failure.reason, message=str(failure))
    _leave(1)


def _explained(error: Exception, request: Request) -> FetchFailed:
    return explained(error, request.repo, request.revision, constants.ENDPOINT)


def _die_with_parent(parent: int) -> None:
    """A daemon that was killed must not leave a download behind."""
    while os.getppid() == parent:
        time.sleep(_WATCH_PARENT_S)
    os._exit(74)


def _leave(code: int) -> None:
    """At once: threads that still receive have nothing to finish."""
    sys.stdout.flush()
    os._exit(code)


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
