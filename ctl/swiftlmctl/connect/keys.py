"""The API key that a client is given where the daemon requires one."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from swiftlm_proto import messages as m
from swiftlmctl import client

_MADE_BY_US = re.compile(r"\bsk-[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
_CHECK_S = 3.0


async def is_required(daemon: client.Daemon) -> bool:
    found = await daemon.admin.list_keys(m.ListKeysRequest())
    return bool(found.names or found.unnamed)


async def made(daemon: client.Daemon, name: str) -> m.AddKeyReply:
    """A key named after the client; a name in use gets a number."""
    reply = await daemon.admin.add_key(m.AddKeyRequest(name=name))
    client.check(reply.fault)
    return reply


def key_in(text: str, url: str) -> str:
    """The key that an earlier `connect` wrote into this text, if the daemon still takes it."""
    found = (match.group() for match in _MADE_BY_US.finditer(text))
    return next((key for key in found if _is_taken(url, key)), "")


def _is_taken(url: str, key: str) -> bool:
    request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_CHECK_S):
            return True
    except urllib.error.HTTPError as refused:
        return refused.code not in (401, 403)
    except OSError:
        return False
