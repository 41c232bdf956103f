"""The process that talks to the hub: `python -m swiftlmd.store.fetch`, a request in, lines out.

A process, so that cancelling is a kill that stops every byte, and so that the daemon itself never
imports the hub's client. Bytes land in `blobs/<hash>.swiftlm-part` and get their final name only
when their size and hash are right; a new process goes on where the last one died.
"""
