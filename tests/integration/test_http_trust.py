"""Who may do what over HTTP: every route as a stranger, by key, as owner, from a foreign page."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import aiohttp
import pytest
from noting_services import fake
from scripted_backend import MODEL, serve

from swiftlm_proto import messages as m
from swiftlmd.config.http import ApiKey, HttpOptions
from swiftlmd.http.openapi import ROUTE_TABLE
from swiftlmd.http.routes import Route
from swiftlmd.http.sessions import COOKIE, IDLE_S, TOKEN_S, Sessions

# What changes configuration or keys, removes files, stops, or looks at what others do.
OWNERS = {
    "add_key", "remove_key", "list_keys", "set_config", "reload_config", "remove_model", "shutdown",
    "logs", "doctor", "cancel", "cache_control", "calibrate", "pair_offer",
}  # fmt: skip
OPEN = {
    "root", "health", "ready", "web", "web_worker", "web_manifest", "pair", "authority", "session",
}  # fmt: skip


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


KEYED = HttpOptions(
    port=0, api_keys=(ApiKey(digest("use"), "phone"), ApiKey(digest("admin"), "desk", True))
)


@dataclass(frozen=True, slots=True)
class Door:
    """A served daemon, and how each caller presents itself."""

    url: str
    http: aiohttp.ClientSession
    asked: list[object]
    routes: tuple[Route, ...]
    callers: dict[str, dict[str, str]]

    async def ask(self, route: Route, caller: str) -> int:
        path = route.path.replace("{key}", "k" * 16).replace("{id}", "x")
        path = path.replace("{id:.+}", MODEL).replace("{name:.+}", "app.js")
        body = {"json": {}} if route.method == "POST" else {}
        headers = self.callers[caller]
        async with self.http.request(
            route.method, self.url + path, headers=headers, allow_redirects=False, **body
        ) as reply:
            if "text/event-stream" not in reply.headers.get("Content-Type", ""):
                await reply.read()
            return reply.status


async def doors(options: HttpOptions) -> AsyncIterator[Door]:
    asked: list[object] = []
    sessions = Sessions()
    admin, store = fake(m.AdminBase, asked), fake(m.StoreBase, asked)
    jar = aiohttp.DummyCookieJar()
    async with (
        serve(options=options, admin=admin, store=store, sessions=sessions) as server,
        aiohttp.ClientSession(cookie_jar=jar) as http,
    ):
        cookie = sessions.begin(sessions.offer())
        callers = {
            "stranger": {},
            "use": {"Authorization": "Bearer use"},
            "admin": {"x-api-key": "admin"},
            "owner": {"Cookie": f"{COOKIE}={cookie}"},
            "foreign": {"Origin": "https://evil.example", "Cookie": f"{COOKIE}={cookie}"},
            "neighbour": {"Origin": "http://127.0.0.1:9", "Cookie": f"{COOKIE}={cookie}"},
        }
        yield Door(server.url, http, asked, server.app[ROUTE_TABLE], callers)


@pytest.fixture
async def unkeyed() -> AsyncIterator[Door]:
    async for door in doors(HttpOptions(port=0)):
        yield door


@pytest.fixture
async def keyed() -> AsyncIterator[Door]:
    async for door in doors(KEYED):
        yield door


def is_owners(route: Route) -> bool:
    return route.name.removeprefix("admin_") in OWNERS


async def test_a_stranger_on_this_machine_uses_and_does_not_administer(unkeyed):
    for route in unkeyed.routes:
        status = await unkeyed.ask(route, "stranger")
        assert (status == 403) == (is_owners(route) or route.name == "session"), route
        assert status != 401, route
    administered = {type(message).__name__ for message in unkeyed.asked}
    assert not administered & {"SetConfigRequest", "AddKeyRequest", "ShutdownRequest"}


async def test_a_page_behind_a_proxy_that_changes_host_is_ours_where_its_origin_is_named():
    origin = "https://ai.example.com"
    async for door in doors(HttpOptions(port=0, cors_origins=(origin, "*"))):
        status = next(route for route in door.routes if route.name == "admin_status")
        own = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        for headers, expected in (
            (own, 200),
            (own | {"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Origin": origin}, 403),  # no browser says where it comes from
            (own | {"Origin": "https://evil.example"}, 403),  # "*" is not ours
        ):
            door.callers["proxied"] = headers
            assert await door.ask(status, "proxied") == expected, headers


@pytest.mark.parametrize("caller", ["foreign", "neighbour"])
async def test_a_foreign_page_does_nothing_even_in_the_owners_browser(unkeyed, caller):
    for route in unkeyed.routes:
        assert await unkeyed.ask(route, caller) == 403, route
    assert not unkeyed.asked


async def test_a_key_uses_an_admin_key_and_the_owner_administer(keyed):
    for route in keyed.routes:
        if route.name in OPEN:
            continue
        assert await keyed.ask(route, "stranger") == 401, route
        assert (await keyed.ask(route, "use") == 403) == is_owners(route), route
        for caller in ("admin", "owner"):
            assert await keyed.ask(route, caller) not in (401, 403), (route, caller)


LOCAL_OPTIONS = [
    ("engine.environment", '{"PYTHONPATH": "/tmp"}'),
    ("models.folders", '["/tmp"]'),
    ("http.tls_key", "/tmp/key"),
    ("http.tls_certificate", "/tmp/crt"),
    ("http.keys", '{"x": "sha256:0"}'),
    ("http.api_keys", "x"),
    ("hub.home", "/tmp"),
    ("hub.ca_bundle", "/tmp/ca"),
    ("hub.endpoint", "https://evil.example"),
    ("cluster.hosts", "evil"),
    ("engine.draft", "/tmp/draft"),
    ("models.default", "../x"),
    ("models.aliases", '{"a": "/tmp/x"}'),
    ("models.preload", '["~/x"]'),
    ("model.a/b.draft", "/tmp/draft"),
]


@pytest.mark.parametrize("caller", ["admin", "owner"])
async def test_paths_environment_and_hashes_are_not_set_over_http_by_anybody(keyed, caller):
    url, headers = keyed.url + "/admin/set_config", keyed.callers[caller]
    for key, value in LOCAL_OPTIONS:
        body = {"key": key, "value": value}
        async with keyed.http.post(url, json=body, headers=headers) as reply:
            assert reply.status == 403, key
            assert (await reply.json())["error"]["code"] == "local_only"
    assert not keyed.asked
    body = {"key": "log.level", "value": "debug"}
    async with keyed.http.post(url, json=body, headers=headers) as reply:
        assert reply.status == 200


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "./x", "../x", "~/x", "~root/x", "a/../../x", "C:\\..\\x", "//host/x"]
)
async def test_no_operation_over_http_takes_a_path(keyed, path):
    headers = keyed.callers["owner"]
    bodies = [
        ("load", {"model": path}),
        ("load", {"model": MODEL, "options": {"draft": path}}),
        ("plan", {"model": MODEL, "options": {"draft": path}}),
        ("pull", {"model": path}),
    ]
    for name, body in bodies:
        async with keyed.http.post(
            f"{keyed.url}/admin/{name}", json=body, headers=headers
        ) as reply:
            assert reply.status == 403, (name, body)
    assert not keyed.asked


async def test_names_of_models_pass(keyed):
    headers = keyed.callers["use"]
    for name in ("smollm2-135m", "mlx-community/Qwen3-4B-4bit", "org/a.b@main"):
        body = {"model": name, "options": {"draft": "ngram"}}
        async with keyed.http.post(keyed.url + "/admin/load", json=body, headers=headers) as reply:
            assert reply.status == 200
    assert len(keyed.asked) == 3


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("unload", {"model": "x", "force": True}),
        ("calibrations", {"model": "x", "action": 2}),
    ],
)
async def test_what_disturbs_others_is_the_owners(keyed, name, body):
    for caller, status in (("use", 403), ("admin", 200), ("owner", 200)):
        headers = keyed.callers[caller]
        async with keyed.http.post(
            f"{keyed.url}/admin/{name}", json=body, headers=headers
        ) as reply:
            assert reply.status == status, caller


async def test_a_key_that_may_administer_is_made_on_this_machine_only(keyed):
    body = {"name": "x", "admin": True}
    headers = keyed.callers["admin"]
    async with keyed.http.post(keyed.url + "/admin/add_key", json=body, headers=headers) as reply:
        assert reply.status == 403


async def test_a_key_ends_when_it_says(http):
    now = [1000.0]
    options = HttpOptions(port=0, api_keys=(ApiKey(digest("k"), "guest", expires_at=2000.0),))
    async with serve(options=options, clock=lambda: now[0]) as server:
        for at, status in ((1999.0, 200), (2000.0, 401)):
            now[0] = at
            headers = {"x-api-key": "k"}
            async with http.get(server.url + "/v1/models", headers=headers) as reply:
                assert reply.status == status


async def test_a_keys_name_is_in_the_log_in_requests_and_in_metrics(keyed, caplog):
    caplog.set_level("INFO", logger="swiftlmd.access")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    headers = {**keyed.callers["use"], "User-Agent": "agent/1 x"}
    url = keyed.url + "/v1/chat/completions"
    async with keyed.http.post(url, json=body, headers=headers) as reply:
        assert reply.status == 200
    [line] = [r.fields for r in caplog.records if hasattr(r, "fields")]
    assert (line["key"], line["client"]) == ("phone", "phone: agent/1")
    async with keyed.http.get(keyed.url + "/metrics", headers=headers) as reply:
        text = await reply.text()
    assert 'swiftlm_key_requests_total{key="phone",status="200"} 1.0' in text
    expected = f'swiftlm_key_tokens_total{{key="phone",kind="prompt",model="{MODEL}"}} 12.0'
    assert expected in text


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_session_begins_once_by_its_address_and_ends_when_idle():
    time = Time()
    sessions = Sessions(time)
    jar = aiohttp.DummyCookieJar()
    async with (
        serve(admin=fake(m.AdminBase, []), sessions=sessions) as server,
        aiohttp.ClientSession(cookie_jar=jar) as http,
    ):
        address = sessions.address(server.url.removeprefix("http://"))
        assert address.startswith(server.url)
        async with http.head(address, allow_redirects=False) as reply:
            assert reply.status == 405  # a preview uses nothing up
        async with http.get(address, allow_redirects=False) as reply:
            assert (reply.status, reply.headers["Location"]) == (303, "./")
            cookie = reply.cookies[COOKIE]
        assert cookie["httponly"]
        assert cookie["samesite"] == "Strict"
        async with http.get(address, allow_redirects=False) as reply:
            assert reply.status == 403
        headers = {"Cookie": f"{COOKIE}={cookie.value}"}
        for pause, status in ((0.0, 200), (IDLE_S - 1, 200), (IDLE_S - 1, 200), (IDLE_S, 403)):
            time.now += pause
            url = server.url + "/admin/reload_config"
            async with http.post(url, json={}, headers=headers) as reply:
                assert reply.status == status
        late = sessions.address(server.url.removeprefix("http://"))
        time.now += TOKEN_S
        async with http.get(late, allow_redirects=False) as reply:
            assert reply.status == 403


def test_a_session_is_for_this_machine_alone():
    class Far:
        def __init__(self, value: str) -> None:
            self.headers = {"Cookie": "x"}
            self.remote = "192.168.1.7"
            self.cookies = {COOKIE: value}

    sessions = Sessions()
    value = sessions.begin(sessions.offer())
    near = Far(value)
    near.remote = "127.0.0.1"
    assert sessions.is_open(near)
    assert not sessions.is_open(Far(value))


@pytest.mark.parametrize("origin", ["http://[::1", "http://", "null", "http://[", "x", "\u20ac"])
async def test_an_origin_that_is_none_is_refused_and_never_a_failure(http, origin):
    async with serve(options=replace(KEYED, api_keys=()), admin=fake(m.AdminBase, [])) as server:
        for path in ("/v1/models", "/x%0a2026-11-29 error forged", "/admin/status"):
            async with http.get(server.url + path, headers={"Origin": origin}) as reply:
                assert reply.status in (400, 403)
