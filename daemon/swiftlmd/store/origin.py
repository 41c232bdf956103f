"""Where a model that was made of GGUF files came from, kept in its own folder.

Two repositories publish files of one name, so the name of a folder says nothing of what is in it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "swiftlm-origin.json"  # `ORIGIN` of swiftlm_engine.convert.folder, which writes it
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Origin:
    """Files of one commit of a repository."""

    repo: str
    commit: str
    include: tuple[str, ...]  # what was asked for
    files: tuple[str, ...]
    digests: tuple[str, ...]  # of the files, as the hub states them

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def same_bytes(self, other: Origin) -> bool:
        """Whether both are the same files of the same repository, whatever the commits."""
        pairs = set(zip(self.files, self.digests, strict=True))
        return self.repo == other.repo and pairs == set(
            zip(other.files, other.digests, strict=True)
        )

    def answers(self, repo: str, commit: str, include: tuple[str, ...]) -> bool:
        """Whether it is what these words ask for, as far as can be told without the hub."""
        named = len(include) == 1 and include == self.files
        return (
            self.repo == repo and commit in ("", self.commit) and (named or include == self.include)
        )

    def words(self) -> str:
        return f"{self.files[0]} of {self.repo} at {self.commit[:12]}"


def read(folder: Path) -> Origin | None:
    """None for a model that no pull made, or that an earlier version made."""
    try:
        with (folder / FILE).open("rb") as file:
            fields = json.loads(file.read(_MAX_BYTES))
        lists = {name: tuple(map(str, fields[name])) for name in ("include", "files", "digests")}
        origin = Origin(str(fields["repo"]), str(fields["commit"]), **lists)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return origin if origin.files and len(origin.files) == len(origin.digests) else None
