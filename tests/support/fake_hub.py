"""A model hub on loopback that speaks huggingface_hub's protocol and misbehaves when told to.

    async with FakeHub() as hub:
        hub.add("org/name", {"config.json": b"{}", "model.safetensors": weights})
        hub.misbehave("model.safetensors", Stall(after=1000))

Large files (those in LARGE or over 10 kB) are served as on the real hub: a redirect to another
path with X-Linked-Size, X-Linked-ETag and ranges; small ones directly, with git's hash as ETag.
A fault holds for one download of that file; several are used up in order.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import re
import struct
import sys
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from swiftlmd.store import StoreOptions

LARGE = (".safetensors", ".gguf", ".bin", "tokenizer.model")
_LARGE_BYTES = 10_000
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PIECE = 1 << 14


@dataclass(frozen=True)
class Status:
    """An answer without a body."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Slow:
    """All of it, at this speed."""

    bytes_per_s: float


@dataclass(frozen=True)
class Stall:
    """So many bytes, then silence on an open connection."""

    after: int


@dataclass(frozen=True)
class Cut:
    """So many bytes, then the connection ends, below the promised length."""

    after: int


@dataclass(frozen=True)
class Other:
    """Another content, with lengths that fit it or the listing."""

    content: bytes
    honest_length: bool = True


@dataclass(frozen=True)
class IgnoreRange:
    """A proxy that answers 200 with everything."""


Fault = Status | Slow | Stall | Cut | Other | IgnoreRange


@dataclass
class Repo:
    files: dict[str, bytes]
    commit: str
    gated: bool = False
    private: bool = False
    listed: list[str] | None = None  # names to list instead of the true ones
    tags: dict[str, str] = field(default_factory=dict)

    def revision(self, name: str) -> bool:
        return name in ("main", self.commit) or self.tags.get(name) == self.commit


@dataclass
class Served:
    """One request and how much of a body it got."""

    method: str
    path: str
    start: int = 0
    sent: int = 0


@dataclass(frozen=True)
class Span:
    """What a request asks of a file."""

    start: int
    end: int
    length: int


class FakeHub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.tokens: dict[str, set[str]] = {}  # token -> repositories it may read
        self.log: list[Served] = []
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._api_faults: deque[Status] = deque()
        app = web.Application()
        app.router.add_get("/api/models", self._search)
        app.router.add_get("/api/models/{org}/{name}", self._info)
        app.router.add_get("/api/models/{org}/{name}/revision/{revision}", self._info)
        app.router.add_route("GET", "/{org}/{name}/resolve/{revision}/{file:.+}", self._resolve)
        app.router.add_get("/cdn/{org}/{name}/{file:.+}", self._cdn)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        self.url = ""

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def add(self, name: str, files: dict[str, bytes], **settings: Any) -> Repo:
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.repos[name] = Repo(files, commit, **settings)
        return self.repos[name]

    def misbehave(self, file: str, *faults: Fault) -> None:
        self._faults[file].extend(faults)

    def fail_listings(self, *faults: Status) -> None:
        self._api_faults.extend(faults)

    def body_bytes(self, file: str = "") -> int:
        """Bytes of file bodies sent so far, of one file or of all."""
        return sum(s.sent for s in self.log if s.path.endswith(file))

    async def _info(self, request: web.Request) -> web.Response:
        self.log.append(Served("GET", request.path))
        if self._api_faults:
            fault = self._api_faults.popleft()
            return web.Response(status=fault.status, headers=fault.headers)
        name = f"{request.match_info['org']}/{request.match_info['name']}"
        refusal = self._refusal(request, name, reading=False)
        if refusal is not None:
            return refusal
        repo = self.repos[name]
        if not repo.revision(request.match_info.get("revision", "main")):
            return _error(404, "RevisionNotFound", "Invalid rev id")
        return web.json_response(_listing(name, repo))

    async def _search(self, request: web.Request) -> web.Response:
        if self._api_faults:
            fault = self._api_faults.popleft()
            return web.Response(status=fault.status, headers=fault.headers)
        text = request.query.get("search", "").lower()
        found = [_card(n, r) for n, r in self.repos.items() if text in n.lower()]
        return web.json_response(found[: int(request.query.get("limit", "20"))])

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        name = f"{request.match_info['org']}/{request.match_info['name']}"
        refusal = self._refusal(request, name, reading=True)
        if refusal is not None:
            return refusal
        repo, file = self.repos[name], request.match_info["file"]
        if file not in repo.files:
            return _error(404, "EntryNotFound", "Entry not found", repo.commit)
        content = repo.files[file]
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{etag(file, content)}"'}
        if not is_large(file, content):
            return await self._send(request, file, content, headers)
        linked = {
            "X-Linked-Size": str(len(content)),
            "X-Linked-ETag": f'"{etag(file, content)}"',
            "Location": f"{self.url}/cdn/{name}/{file}",
        }
        self.log.append(Served(request.method, request.path))
        return web.Response(status=302, headers=headers | linked)

    async def _cdn(self, request: web.Request) -> web.StreamResponse:
        name = f"{request.match_info['org']}/{request.match_info['name']}"
        file = request.match_info["file"]
        return await self._send(request, file, self.repos[name].files[file], {})

    async def _send(
        self, request: web.Request, file: str, content: bytes, headers: dict[str, str]
    ) -> web.StreamResponse:
        served = Served(request.method, request.path)
        self.log.append(served)
        faults = self._faults[file]
        fault = faults.popleft() if faults and request.method == "GET" else None
        if isinstance(fault, Status):
            return web.Response(status=fault.status, headers=fault.headers)
        length = len(content)
        if isinstance(fault, Other):
            content = fault.content
            length = len(content) if fault.honest_length else length
        end = length
        found = _RANGE.match(request.headers.get("Range", ""))
        if found and not isinstance(fault, IgnoreRange):
            served.start = int(found.group(1))
            end = min(length, int(found.group(2) or length) + 1)
        if served.start >= length > 0:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{length}"})
        whole = Span(served.start, end, length)
        return await self._stream(request, served, content, whole, headers, fault)

    async def _stream(
        self,
        request: web.Request,
        served: Served,
        content: bytes,
        span: Span,
        headers: dict[str, str],
        fault: Fault | None,
    ) -> web.StreamResponse:
        partial = span.end - span.start < span.length
        response = web.StreamResponse(status=206 if partial else 200, headers=headers)
        response.headers["Accept-Ranges"] = "bytes"
        response.content_length = span.end - span.start
        if partial:
            response.headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{span.length}"
        await response.prepare(request)
        body = content[span.start : span.end]
        if isinstance(fault, Cut | Stall):
            body = body[: fault.after]
        for at in range(0, len(body), _PIECE):
            piece = body[at : at + _PIECE]
            try:
                await response.write(piece)
            except ConnectionResetError:  # the client was killed: tests do that
                return response
            served.sent += len(piece)
            if isinstance(fault, Slow):
                await asyncio.sleep(len(piece) / fault.bytes_per_s)
        if isinstance(fault, Stall):
            await asyncio.sleep(3600)
        if len(body) < response.content_length:
            assert request.transport is not None
            request.transport.abort() if isinstance(fault, Other) else request.transport.close()
        return response

    def _refusal(self, request: web.Request, name: str, *, reading: bool) -> web.Response | None:
        """As the real hub: a repository one may not see is absent; a gated one can be listed."""
        header = request.headers.get("Authorization", "")
        token = header.removeprefix("Bearer ")
        if token and token not in self.tokens:
            return _error(401, "", "Invalid credentials in Authorization header")
        repo = self.repos.get(name)
        allowed = name in self.tokens.get(token, set())
        if repo is None or (repo.private and not allowed):
            return _error(404 if token else 401, "RepoNotFound", "Repository not found")
        if repo.gated and reading and not allowed:
            return _error(403 if token else 401, "GatedRepo", "Access to this model is restricted")
        return None


def is_large(file: str, content: bytes) -> bool:
    return file.endswith(LARGE) or len(content) > _LARGE_BYTES


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def etag(file: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if is_large(file, content) else git_digest(content)


def _listing(name: str, repo: Repo) -> dict[str, Any]:
    siblings = []
    for file, content in repo.files.items():
        entry: dict[str, Any] = {"rfilename": file, "size": len(content)}
        entry["blobId"] = git_digest(content)
        if is_large(file, content):
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
        siblings.append(entry)
    for listed in repo.listed or []:
        siblings.append({"rfilename": listed, "size": 1, "blobId": git_digest(b"x")})
    return _card(name, repo) | {"siblings": siblings}


def _card(name: str, repo: Repo) -> dict[str, Any]:
    return {
        "_id": "0",
        "id": name,
        "modelId": name,
        "sha": repo.commit,
        "private": repo.private,
        "gated": "manual" if repo.gated else False,
        "disabled": False,
        "downloads": 10,
        "likes": 1,
        "tags": ["safetensors", "license:apache-2.0"],
        "pipeline_tag": "text-generation",
        "cardData": {"license": "apache-2.0"},
        "config": {"model_type": "llama", "quantization": {"bits": 4, "group_size": 64}},
        "safetensors": {"parameters": {"U32": 1000, "F16": 500}, "total": 8500},
    }


def _error(status: int, code: str, message: str, commit: str = "") -> web.Response:
    headers = {"X-Error-Message": message}
    if code:
        headers["X-Error-Code"] = code
    if commit:
        headers["X-Repo-Commit"] = commit
    return web.Response(
        status=status,
        headers=headers,
        text=json.dumps({"error": message}),
        content_type="application/json",
    )


def model_files(weight_bytes: int = 40_000, *, shards: int = 1, seed: int = 0) -> dict[str, bytes]:
    """A small llama that the planner finds complete; weights are noise of about that size."""
    columns = 64
    rows = max(16, weight_bytes // (2 * columns) // shards)
    config = {
        "model_type": "llama",
        "hidden_size": columns,
        "num_hidden_layers": 1,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": rows,
        "max_position_embeddings": 256,
        "torch_dtype": "float16",
    }
    files = {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
        "README.md": b"# not needed by a load",
        "pytorch_model.bin": b"never fetched",
    }
    names = ["model.safetensors"]
    if shards > 1:
        names = [f"model-{i:05d}-of-{shards:05d}.safetensors" for i in range(1, shards + 1)]
    where = {}
    for number, file in enumerate(names):
        tensor = "model.embed_tokens.weight" if number == 0 else f"model.layers.{number}.x.weight"
        where[tensor] = file
        noise = random.Random(seed * 1000 + number).randbytes(rows * columns * 2)
        files[file] = safetensors(tensor, (rows, columns), noise)
    if shards > 1:
        files["model.safetensors.index.json"] = json.dumps({"weight_map": where}).encode()
    return files


def safetensors(tensor: str, shape: tuple[int, int], content: bytes) -> bytes:
    entry = {"dtype": "F16", "shape": list(shape), "data_offsets": [0, len(content)]}
    header = json.dumps({tensor: entry}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + content


async def until(condition: Callable[[], bool | Awaitable[bool]], limit_s: float = 30) -> None:
    """Waits for what another process does; raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.02)


def store_options(hub: FakeHub, folder: Path, **changes: Any) -> StoreOptions:
    """A store whose hub is the fake one and whose every folder is below `folder`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    env |= {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "HOME": str(folder),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        **changes.pop("environ", {}),
    }
    settings = {
        "endpoint": hub.url,
        "patience_s": 15.0,
        "spare_bytes": 0,
        "scale_dtype": "float32",
        **changes,
    }
    return StoreOptions(environ=env, home=folder, hub_cache=folder / "hub", **settings)
