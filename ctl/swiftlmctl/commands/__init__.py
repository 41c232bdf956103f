"""The verbs, one file for each noun; every file offers `register(app)`."""
