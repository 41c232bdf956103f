"""`python -m swiftlmctl`. Nothing is imported from the folder that it was started in."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]

from swiftlmctl.main import main

main()
