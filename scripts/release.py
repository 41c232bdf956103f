"""Makes what a release publishes, in dist/: `make release`.

The wheel and the source archive are built twice, from the commit and not from the working tree, in
two folders and under two umasks; they are published only if both builds are equal byte for byte.
Beside them: an SBOM (CycloneDX), the changelog's section, the script for `curl ... | sh` with the
archive's hash in it, and SHA256SUMS over all of them.

To sign, after reading dist/:
  git tag -s v0.1.0 && git push --tags
  gpg --armor --detach-sign dist/SHA256SUMS      (or: minisign -Sm dist/SHA256SUMS)
The wheel goes to the index by trusted publishing, which needs no key here:
  https://docs.pypi.org/trusted-publishers/
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import uuid
from pathlib import Path
from typing import Any  # JSON values

ROOT = Path(__file__).resolve().parent.parent
URL = "https://github.com/swiftlm/swiftlm/releases/download"
INSTALLER = "install-swiftlm.sh"
_BUILD = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
_NAMESPACE = uuid.UUID("5f0f1e58-0c5d-5b5e-9b62-3f4f3a1f0b1d")  # of our SBOMs' serial numbers


class NotReproducible(Exception):
    """Two builds of one commit differ."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--url", default=URL, help="where releases will lie, above vVERSION/")
    given = parser.parse_args()
    if _git("status", "--porcelain"):
        print("note: the working tree has changes; the release is made of the last commit")
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        files = build_twice(Path(work), given.out)
        source = Path(work) / "1" / "source"
        files += write_papers(source, given.out, given.url)
    (given.out / "SHA256SUMS").write_text(sums(files))
    print(sums(files), end="")


def build_twice(work: Path, out: Path) -> list[Path]:
    """The wheel and the source archive in `out`; raises NotReproducible."""
    tools = work / "tools"
    pip = [sys.executable, "-I", "-m", "pip", "-q", "--disable-pip-version-check", "install"]
    hashed = ["--require-hashes", "--target", str(tools), "-r", str(ROOT / "locks/build.txt")]
    subprocess.run([*pip, *hashed], check=True)
    first, second = (
        build(work / name, tools, umask) for name, umask in (("1", 0o022), ("second", 0o077))
    )
    compare(first, second)
    published = []
    for file in first:
        published.append(out / file.name)
        published[-1].write_bytes(file.read_bytes())
    return published


def build(work: Path, tools: Path, umask: int) -> list[Path]:
    source, built = work / "source", work / "built"
    source.mkdir(parents=True)
    built.mkdir()
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True, umask=umask)
    environ = {
        **os.environ,
        "PYTHONPATH": str(tools),
        "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct"),
    }
    command = [sys.executable, "-c", _BUILD, str(built)]
    subprocess.run(command, cwd=source, env=environ, check=True, umask=umask)
    return sorted(built.iterdir())


def compare(first: list[Path], second: list[Path]) -> None:
    if [file.name for file in first] != [file.name for file in second]:
        raise NotReproducible("two builds made files of different names")
    different = [
        one.name for one, other in zip(first, second, strict=True) if digest(one) != digest(other)
    ]
    if different:
        raise NotReproducible(f"two builds of one commit differ: {', '.join(different)}")


def write_papers(source: Path, out: Path, url: str) -> list[Path]:
    """What is published beside the builds, which lie in `out`."""
    version = version_of(source)
    archive = out / f"swiftlm-{version}.tar.gz"
    texts = {
        "sbom.cdx.json": json.dumps(sbom(source), indent=1) + "\n",
        "RELEASE-NOTES.md": changelog_section(source, version),
        INSTALLER: installer(source, version, digest(archive), f"{url}/v{version}/{archive.name}"),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def version_of(source: Path) -> str:
    project = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def installer(source: Path, version: str, sha256: str, url: str) -> str:
    text = (source / "scripts/get.sh").read_text("utf-8")
    for name, value in {"VERSION": version, "SHA256": sha256, "URL": url}.items():
        text = text.replace(f"@{name}@", value)
    return text


def changelog_section(source: Path, version: str) -> str:
    text = (source / "docs/changelog.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(version)}\b.*?(?=^## |\Z)", text, re.M | re.S)
    if found is None:
        raise SystemExit(f"docs/changelog.md has no section for {version}")
    return found[0].rstrip() + "\n"


def sbom(source: Path) -> dict[str, Any]:
    """CycloneDX 1.6 of what install.sh installs on a Mac; the same for the same commit."""
    version, parts = version_of(source), components(source / "locks/macos.txt")
    serial = uuid.uuid5(_NAMESPACE, version + json.dumps(parts))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": f"pkg:pypi/swiftlm@{version}",
                "name": "swiftlm",
                "version": version,
                "purl": f"pkg:pypi/swiftlm@{version}",
                "licenses": [{"license": {"id": "MIT"}}],
            }
        },
        "components": parts,
    }


def components(lock: Path) -> list[dict[str, Any]]:
    """One for each package of a lock, with the hashes that pip checks."""
    found: list[dict[str, Any]] = []
    for line in lock.read_text("utf-8").splitlines():
        if package := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", line):
            name, version = package.groups()
            purl = f"pkg:pypi/{name.lower()}@{version}"
            place = {"type": "distribution", "url": f"https://pypi.org/project/{name}/{version}/"}
            found.append(
                {"type": "library", "bom-ref": purl, "name": name, "version": version,
                 "purl": purl, "externalReferences": [{**place, "hashes": []}]}
            )  # fmt: skip
        elif (sha256 := re.search(r"--hash=sha256:([0-9a-f]{64})", line)) and found:
            hashes = found[-1]["externalReferences"][0]["hashes"]
            hashes.append({"alg": "SHA-256", "content": sha256[1]})
    return found


def sums(files: list[Path]) -> str:
    """As `sha256sum -c` and `shasum -c` read it."""
    return "".join(f"{digest(file)}  {file.name}\n" for file in sorted(files))


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    try:
        main()
    except NotReproducible as error:
        sys.exit(f"release.py: {error}; nothing was published")
