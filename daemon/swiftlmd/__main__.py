"""`python -m swiftlmd`. Nothing is imported from the folder that it was started in."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]

import os
import signal
import sys


def _run() -> None:
    if sys.argv[1:2] == ["serve"]:
        # The imports take a second, in which a SIGTERM would end this process with a code that
        # launchd answers with a new start. The daemon sets its own handler later.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    from swiftlmd.main import main

    main()


if __name__ == "__main__":
    _run()
