"""An engine process whose reads of experts fail as the file that FAULT names says."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

_FAULT = Path(os.environ["FAULT"])
_preadv = os.preadv


def preadv(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
    fault = _FAULT.read_text() if _FAULT.exists() else ""
    if fault == "eio":
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    if fault == "gone":
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
    if fault == "end":
        return 0
    if fault == "short":  # no error: the rest has to be asked for
        return _preadv(fd, [buffers[0][: max(1, len(buffers[0]) // 2)]], offset)
    return _preadv(fd, buffers, offset)


if __name__ == "__main__":
    os.preadv = preadv  # before the reader takes it as its default

    from swiftlm_engine.__main__ import main

    main()
