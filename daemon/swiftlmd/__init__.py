"""swiftlmd: who may run what, when, and who is told."""
