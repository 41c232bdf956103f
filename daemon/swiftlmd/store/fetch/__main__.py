"""Fetch one model: list, choose, check the room, download in parallel, verify, link."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from swiftlmd.store.fetch import choice
from swiftlmd.store.fetch.cache import RepoCache
from swiftlmd.store.fetch.choice import RemoteFile
from swiftlmd.store.fetch.download import Downloader
from swiftlmd.store.fetch.failure import FetchFailed, Reason
from swiftlmd.store.fetch.listing import Listing, list_repo
from swiftlmd.store.fetch.request import Request
from swiftlmd.store.fetch.worker import fail, say, serve

_TICK_S = 0.2
_FILES_PER_LINE = 500


def main() -> None:
    def subject(text: bytes) -> tuple[str, str]:
        request = Request.from_json(text)
        return request.repo, request.revision

    serve(lambda text: fetch(Request.from_json(text)), subject)


def fetch(request: Request) -> None:
    say(stage="resolve")
    listing = list_repo(request.repo, request.revision, request.patience_s)
    repo = _spelled(request.repo, listing)
    cache = RepoCache(Path(request.cache), repo)
    cache.prepare()
    downloader = Downloader(repo, listing.commit, cache, request.patience_s, request.recheck)
    wanted = _wanted(request, listing.files, downloader)
    _check_room(request, cache, wanted)
    _announce(listing, wanted)
    _download(request, downloader, wanted)
    snapshot = cache.link(listing.commit, request.revision, wanted)
    say(stage="done", path=str(snapshot), commit=listing.commit, repo=repo)


def _spelled(repo: str, listing: Listing) -> str:
    """As the hub writes it: two spellings would be two copies, or one folder with two pins."""
    return listing.repo if listing.repo.casefold() == repo.casefold() else repo


def _wanted(request: Request, files: list[RemoteFile], downloader: Downloader) -> list[RemoteFile]:
    """By size, so that a model's shape is known long before its weights are here."""
    extra = choice.included_files(files, request.include)
    ggufs = [f for f in extra if f.name.endswith(".gguf")]
    if ggufs:
        chosen = ggufs
    elif weights := choice.weight_files(files, _indexed(files, downloader)):
        weights = [f for f in weights if not request.weights or f.name in request.weights]
        chosen = [*choice.small_files(files), *weights, *extra]
    else:
        raise choice.explain_no_weights(request.repo, files)
    unique = {f.name: f for f in chosen}
    return sorted(unique.values(), key=lambda f: (f.size, f.name))


def _indexed(files: list[RemoteFile], downloader: Downloader) -> list[str] | None:
    """What the index names; it is fetched ahead, because it decides which weights are needed."""
    index = next((f for f in files if f.name == choice.INDEX), None)
    if index is None:
        return None
    downloader.fetch(index)
    return choice.indexed_files(downloader.cache.blob(index).read_bytes())


def _check_room(request: Request, cache: RepoCache, wanted: list[RemoteFile]) -> None:
    missing = sum(f.size - cache.present_bytes(f) for f in wanted)
    free = cache.free_bytes()
    if missing + request.spare_bytes > free:
        raise FetchFailed(
            Reason.DISK_FULL,
            f"'{request.repo}' needs {missing / 1e9:.1f} GB more in {request.cache}, "
            f"{free / 1e9:.1f} GB are free and {request.spare_bytes / 1e9:.1f} GB must stay free",
        )


def _announce(listing: Listing, wanted: list[RemoteFile]) -> None:
    """In portions: who reads the lines bounds their length, and a repository may have thousands."""
    total = sum(f.size for f in wanted)
    for at in range(0, max(1, len(wanted)), _FILES_PER_LINE):
        portion = wanted[at : at + _FILES_PER_LINE]
        say(
            stage="files",
            commit=listing.commit,
            licence=listing.licence,
            total_bytes=total,
            files=[{"name": f.name, "size": f.size, "digest": f.digest} for f in portion],
            more=at + _FILES_PER_LINE < len(wanted),
        )


def _download(request: Request, downloader: Downloader, wanted: list[RemoteFile]) -> None:
    with ThreadPoolExecutor(request.parallel) as pool:
        running: set[Future[None]] = {pool.submit(downloader.fetch, f) for f in wanted}
        while running:
            done, running = wait(running, timeout=_TICK_S, return_when=FIRST_EXCEPTION)
            for future in done:
                error = future.exception()
                if isinstance(error, Exception):
                    fail(error, request.repo, request.revision)
            _report(downloader.cache, wanted, running=bool(running))


def _report(cache: RepoCache, wanted: list[RemoteFile], *, running: bool) -> None:
    done = sum(cache.present_bytes(f) for f in wanted)
    total = sum(f.size for f in wanted)
    late = next((f.name for f in wanted if not cache.is_whole(f)), "")
    stage = "verify" if running and done == total else "download"
    say(
        stage=stage,
        done_bytes=done,
        total_bytes=total,
        checked_bytes=cache.checked_bytes,
        detail=late,
    )


if __name__ == "__main__":
    main()
