"""Stands for a follower on another host, whose agent lends it (`swiftlmd join`).

A small process of the leader: it asks the host's agent for a rank and keeps the connection. Its end
ends the rank, and the rank's end ends it, with the same exit code.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from pathlib import Path

from swiftlm_engine.cluster.link import GREETING_S, Link, LinkLost, Message, read_secret
from swiftlm_engine.cluster.transport import reaching

_ANSWER_S = 60.0  # the agent looks for the model's files
_POLL_S = 0.5
_FAILED = 1


def hire_command(agent: str, asked: Message, secret_file: Path) -> list[str]:
    """`asked`: leader, rank, fingerprint of the model and version, as text."""
    isolated = "-I" if sys.flags.isolated else "-P"
    fields = [f"{name}={value}" for name, value in asked.items()]
    module = ["-X", "utf8", "-m", "swiftlm_engine.cluster.remote_follower"]
    return [sys.executable, isolated, *module, agent, str(secret_file), str(os.getpid()), *fields]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent")
    parser.add_argument("secret_file", type=Path)
    parser.add_argument("parent", type=int)
    parser.add_argument("fields", nargs="*")
    arguments = parser.parse_args()
    asked = dict(field.split("=", 1) for field in arguments.fields)
    try:
        return hire(arguments.agent, arguments.secret_file, asked, arguments.parent)
    except (LinkLost, OSError) as error:
        print(f"is not lent: its agent {error}", file=sys.stderr)
        return _FAILED


def hire(agent: str, secret_file: Path, asked: Message, parent: int) -> int:
    """Returns the rank's exit code. Raises LinkLost or OSError."""
    secret = read_secret(secret_file)
    with reaching(agent, GREETING_S) as connection, Link(connection) as link:
        link.greet_agent(secret)
        link.set_timeout(_ANSWER_S)
        link.send({"do": "start", **asked})
        answer = link.receive()
        if "fault" in answer:
            raise LinkLost(f"says: {answer['fault']}")
        while not select.select([connection], [], [], _POLL_S)[0]:
            if os.getppid() != parent:
                return _FAILED
        end = link.receive()
        code = int(end["ended"]) or _FAILED
        print(f"ended with code {code} there: {end.get('said', '')}", file=sys.stderr)
        return code


if __name__ == "__main__":
    sys.exit(main())
