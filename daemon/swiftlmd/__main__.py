"""`python -m swiftlmd`."""

from swiftlmd.main import main

if __name__ == "__main__":
    main()
