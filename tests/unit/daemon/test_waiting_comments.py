"""What a silent stream says while its request waits."""

from __future__ import annotations

from swiftlm_proto import messages as m
from swiftlmd.http.encoder import waiting


def test_a_comment_counts_the_prompt_or_the_bytes_of_a_download() -> None:
    assert waiting(None) == b": waiting\n\n"
    assert waiting(m.Progress(10, 40)) == b": prefill 10/40\n\n"
    large = m.Progress(done_bytes=5_000_000_000, total_bytes=9_000_000_000)
    assert waiting(large) == b": pull 5000000000/9000000000 bytes\n\n"
    parsed = m.Progress.parse(bytes(large))
    assert parsed.total_bytes == 9_000_000_000  # more than 32 bits
