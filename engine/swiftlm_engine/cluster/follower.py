"""A follower's whole life: join the leader, load a share of the model, do as told, end with it."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftlm_engine.brain.facts import ModelFilesError, read_model
from swiftlm_engine.brain.prefix_index import CachedPart
from swiftlm_engine.cluster.group import read_limits
from swiftlm_engine.cluster.leader import BEATS, START_S
from swiftlm_engine.cluster.limits import set_limits
from swiftlm_engine.cluster.link import GREETING_S, Link, LinkLost, Message, read_secret
from swiftlm_engine.cluster.replica import Mirror
from swiftlm_engine.cluster.ring import ReservedPort, join_ring
from swiftlm_engine.cluster.ring_holder import keep_open, open_sockets
from swiftlm_engine.load.device import computes_as, find_device, memory_bytes
from swiftlm_engine.messages import EngineFault
from swiftlm_engine.split.shares import Place, decode_share
from swiftlm_engine.turboquant.formats import FORMATS
from swiftlm_engine.turboquant.layer_support import LayerVerdict, Verdict

log = logging.getLogger(__name__)

# Ranks run the same code: what fails here mostly fails at the leader, who can say what it was (a
# family that cannot be split) unless this end comes first and is all that is reported.
LEADER_SPEAKS_S = 2.0


@dataclass(frozen=True, slots=True)
class Invitation:
    """Where the leader waits, and as whom to come; `folder` is where the model is on this host,
    if that is not where the leader has it."""

    leader: str  # host:port
    rank: int
    secret_file: Path
    folder: Path | None = None


def follow(invitation: Invitation, version: str, end: Callable[[str], None]) -> None:
    """Runs on the thread that shall own MLX. `end` must end the process, from any thread."""
    secret = read_secret(invitation.secret_file)
    link = Link(_reach(invitation.leader))
    port = ReservedPort(link.own_host)
    try:
        lost_after_s = _introduce(link, secret, invitation.rank, version, port.address)
    except LinkLost as error:
        raise LinkLost(f"the leader at {invitation.leader} {error}") from error
    link.set_timeout(lost_after_s)
    steps: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(link, steps, end), daemon=True).start()
    threading.Thread(target=_beat, args=(link, lost_after_s / BEATS, end), daemon=True).start()
    mirror = _load(link, steps, invitation, port)
    try:
        while True:
            if answer := take_step(mirror, steps.get()):
                link.send(answer)
    except Exception:
        time.sleep(LEADER_SPEAKS_S)
        raise


def _reach(leader: str) -> socket.socket:
    host, _, port = leader.rpartition(":")
    try:
        return socket.create_connection((host, int(port)), GREETING_S)
    except OSError as error:
        why = error.strerror or error
        message = f"the leader at {leader} cannot be reached: {why}; does a firewall keep it off?"
        raise LinkLost(message) from error


def _introduce(link: Link, secret: bytes, rank: int, version: str, ring: str) -> float:
    """Returns how long the leader may be silent, once all ranks are there."""
    link.greet_leader(secret)
    own = {"memory": memory_bytes(), "device": computes_as()}
    link.send({"rank": rank, "version": version, "ring": ring, **own})
    link.set_timeout(START_S)
    return float(link.receive()["lost_after_s"])


def take_step(mirror: Mirror, step: Message) -> Message | None:
    """Returns what the leader waits for, if it does."""
    match step["do"]:
        case "decode":
            mirror.decode(step["known"], step["greedy"])
        case "prefill":
            mirror.prefill(_key(step), step["ids"])
        case "open":
            mirror.open(_key(step))
        case "join":
            mirror.join(_key(step))
        case "drop":
            mirror.drop(_key(step))
        case "reset":
            mirror.reset()
        case "clear":
            mirror.clear_pool()
        case "test":
            measured = mirror.test(step["ids"], _verdict(step), step["chunk"])
            return {"errors": measured.layer_errors, "path_errors": measured.path_errors}
        case "use":
            mirror.use(_verdict(step))
        case "offer":
            mirror.offer(_key(step))
        case "keep":
            mirror.keep(step["number"], CachedPart(step["part"]))
        case "shorten":
            mirror.shorten(step["number"], step["kept"], step["length"], step["shorter_by"])
        case "forget":
            mirror.forget(step["number"])
        case "give":
            mirror.give(step["kept"], step["length"])
        case "resume":
            mirror.resume(_key(step))
        case unknown:
            raise LinkLost(f"sent a step '{unknown}' that this version does not know")
    return None


def _verdict(step: Message) -> Verdict:
    formats = [name and FORMATS[name] for name in step["formats"]]
    return Verdict(tuple(LayerVerdict(i, each, "") for i, each in enumerate(formats)))


def _key(step: Message) -> tuple[str, int]:
    request_id, index = step["key"]
    return request_id, index


def _listen(link: Link, steps: queue.SimpleQueue[Message], end: Callable[[str], None]) -> None:
    try:
        while True:
            message = link.receive()
            if message.get("do") != "beat":
                steps.put(message)
    except LinkLost as error:
        end(f"the leader {error}")


def _beat(link: Link, every_s: float, end: Callable[[str], None]) -> None:
    try:
        while True:
            link.send({"do": "beat"})
            time.sleep(every_s)
    except LinkLost as error:
        end(f"the leader {error}")


def _load(
    link: Link, steps: queue.SimpleQueue[Message], invitation: Invitation, port: ReservedPort
) -> Mirror:
    """Answers each of the leader's questions, with what is wrong if something is."""
    from mlx_lm.models.cache import make_prompt_cache

    from swiftlm_engine.load.weights import load_weights

    rank, asked = invitation.rank, steps.get()
    if invitation.folder is not None:
        asked["folder"] = str(invitation.folder)
    link.send(_check(asked))
    told = steps.get()  # every rank has found its files in order
    if "limits" in told:
        set_limits(read_limits(told["limits"]), find_device())
    port.release()
    before = open_sockets()
    ring = join_ring(told["ring"], rank, told["backend"])
    place = Place(ring, decode_share(told["share"]), told["backend"])
    keep_open(open_sockets() - before)
    try:
        weights = load_weights(
            Path(asked["folder"]), asked["dtype"], find_device(), _say_nothing, place=place
        )
    except EngineFault as error:
        link.send({"fault": str(error)})
        threading.Event().wait()  # the leader reports it, and ends: not this rank before it
        raise
    log.info("rank %d holds %.1f MB of weights", rank, weights.weight_bytes / 1e6)
    model: Any = weights.model
    link.send({"loaded": weights.weight_bytes, "dtype": weights.dtype})
    return Mirror(model, lambda: list(make_prompt_cache(model)), place)


def _check(asked: Message) -> Message:
    try:
        fingerprint = read_model(Path(asked["folder"])).fingerprint
    except (ModelFilesError, OSError) as error:
        return {"fault": str(error)}
    if fingerprint != asked["fingerprint"]:
        return {"fault": f"the files in {asked['folder']} are not the leader's"}
    return {"fits": True}


def _say_nothing(stage: str, fraction: float, detail: str) -> None:
    pass
