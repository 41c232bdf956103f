"""The generated messages and service classes of `proto/swiftlm/v1/*.proto`, under one name.

`PROTOCOL` travels in every status; a client that finds another number says so and goes on only
with what both know.
"""

from swiftlm_proto._gen.swiftlm.v1 import *  # noqa: F403 - one import path for generated code
from swiftlm_proto._gen.swiftlm.v1 import Protocol

PROTOCOL = int(Protocol.CURRENT)
