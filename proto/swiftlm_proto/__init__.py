"""What the daemon, the engine and the CLI say to each other, and where they meet.

`swiftlm_proto.messages` re-exports the generated messages, `swiftlm_proto.paths` says where the
sockets and files lie. Nothing here runs the service.
"""
