from swiftlmctl.main import main

main()
