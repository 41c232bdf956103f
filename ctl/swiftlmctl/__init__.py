"""swiftlmctl: parse, call, print."""
