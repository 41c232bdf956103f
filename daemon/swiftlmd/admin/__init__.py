"""What `swiftlmctl` asks: the admin service, its socket, doctor and log files."""
