"""The engine's gRPC face; the only part of this room that knows the wire."""
