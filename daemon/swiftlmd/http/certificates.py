"""Certificates for the local network: an authority of this machine, and what it vouches for.

Made with the `openssl` program that macOS and Debian have. Devices trust the authority once; its
constraints let it vouch for this machine's own names and for private addresses only, so that a
stolen key opens nobody's bank. Nothing here runs on the event loop.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from swiftlmd.config.load import ConfigError

_SEARCHED = "/usr/bin:/bin:/usr/local/bin:/opt/homebrew/bin"
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 397  # phones refuse a server's certificate of more than 825
_RENEW_S = 30 * 24 * 3600
_PATIENCE_S = 60.0
_HOSTS = ("local", "localhost")
_NETWORKS = (
    *(ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")),
    *(ipaddress.ip_network(text) for text in ("100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8")),
    *(ipaddress.ip_network(text) for text in ("fc00::/7", "fe80::/10", "::1/128")),
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of one certificate (with its chain) and its key."""

    chain: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Names:
    """Names and addresses by which the local network reaches this machine."""

    hosts: tuple[str, ...]
    addresses: tuple[str, ...]

    def as_extension(self) -> str:
        hosts = [f"DNS:{name}" for name in self.hosts]
        return ",".join([*hosts, *(f"IP:{address}" for address in self.addresses)])


def own_names() -> Names:
    """Only what the authority may vouch for: one name beyond that voids the whole certificate."""
    name = _bonjour_name()
    found = {
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }
    private = [text for text in sorted(found) if _is_private(text) and not _rotates(text)]
    return Names((f"{name}.local", "localhost"), tuple(private))


def _bonjour_name() -> str:
    """Of NAME.local: on a Mac not the name of the host, which a network may have given."""
    name = _local_host_name() if sys.platform == "darwin" else ""
    return (name or socket.gethostname()).lower().partition(".")[0]


@functools.cache  # asked for every minute; a restart reads it again
def _local_host_name() -> str:
    command = ["/usr/sbin/scutil", "--get", "LocalHostName"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _rotates(text: str) -> bool:
    """Addresses of a link alone need the link's name to be reached; those of awdl and utun change
    by themselves."""
    address = ipaddress.ip_address(text)
    return address.version == 6 and address.is_link_local


def _is_private(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return any(address in network for network in _NETWORKS)


class Authority:
    """In a folder of its own, which only the owner may read."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self.file = folder / "authority.crt"
        self._key = folder / "authority.key"
        self._server = Certificate(folder / "server.crt", folder / "server.key")
        self._note = folder / "server.json"

    def certificate(self, names: Names) -> Certificate:
        """For these names: what is there while it holds, else a new one. Raises ConfigError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self.file.exists() and self._key.exists()):
            self._make_authority(names)
            self._note.unlink(missing_ok=True)
        if not self.holds(names):
            self._make_server(names)
        return self._server

    def holds(self, names: Names) -> bool:
        """What was made last is there as it was made, is for these names and will not end soon.

        Read from a note of ours: asked every minute, it starts no process.
        """
        try:
            noted = json.loads(self._note.read_text("utf-8"))
            current = noted["for"] == self._made_for(names)
            return bool(current and self._clock() < noted["ends"] - _RENEW_S)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _made_for(self, names: Names) -> str:
        """Names, and the files as they are on disk."""
        files = (self.file, self._server.chain, self._server.key)
        stamps = [f"{file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
        return "; ".join([names.as_extension(), *stamps])

    def _make_authority(self, names: Names) -> None:
        permitted = [f"permitted;IP:{n.network_address}/{n.netmask}" for n in _NETWORKS]
        permitted += [f"permitted;DNS:{name}" for name in _HOSTS]
        text = f"""
            [req]
            distinguished_name = name
            x509_extensions = authority
            prompt = no
            [name]
            CN = swiftlm on {names.hosts[0][:40]}
            [authority]
            basicConstraints = critical,CA:TRUE,pathlen:0
            keyUsage = critical,keyCertSign,cRLSign
            subjectKeyIdentifier = hash
            nameConstraints = critical,{",".join(permitted)}
        """
        made = ("-newkey", "rsa:2048", "-nodes", "-sha256", "-days", str(_AUTHORITY_DAYS))
        files = ("-keyout", str(self._key), "-out", str(self.file))
        _openssl("req", "-x509", *made, *files, "-config", self._written("authority.cnf", text))

    def _make_server(self, names: Names) -> None:
        text = f"""
            [req]
            distinguished_name = name
            prompt = no
            [name]
            CN = {names.hosts[0][:60]}
            [server]
            basicConstraints = critical,CA:FALSE
            keyUsage = critical,digitalSignature,keyEncipherment
            extendedKeyUsage = serverAuth
            subjectAltName = {names.as_extension()}
        """
        config, asked = self._written("server.cnf", text), str(self._folder / "server.csr")
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", str(self._server.key))
        _openssl("req", "-new", *key, "-out", asked, "-config", config)
        serial = str(int.from_bytes(os.urandom(15)))
        signer = ("-CA", str(self.file), "-CAkey", str(self._key), "-sha256", "-set_serial", serial)
        days = ("-days", str(_SERVER_DAYS), "-extfile", config, "-extensions", "server")
        _openssl("x509", "-req", "-in", asked, *signer, *days, "-out", str(self._server.chain))
        ends = self._clock() + _SERVER_DAYS * 24 * 3600
        self._note.write_text(json.dumps({"for": self._made_for(names), "ends": ends}), "utf-8")

    def _written(self, name: str, text: str) -> str:
        path = self._folder / name
        path.write_text(text, "utf-8")
        return str(path)


def fingerprint(certificate: Path) -> str:
    """SHA-256 as phones and browsers show it. Raises OSError or ValueError."""
    der = ssl.PEM_cert_to_DER_cert(certificate.read_text("ascii"))
    return hashlib.sha256(der).digest().hex(":").upper()


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl", path=_SEARCHED)
    if program is None:
        raise ConfigError('http.tls "auto" needs the program `openssl`; install it or use "files"')
    old = os.umask(0o077)  # keys are for nobody else, from their first byte
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"openssl {arguments[0]} took longer than {_PATIENCE_S:g} s") from error
    finally:
        os.umask(old)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:]
        raise ConfigError(f"openssl {arguments[0]} failed: {' '.join(reason)}")
