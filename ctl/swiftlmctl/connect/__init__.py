"""Points other programs at this service: their configuration files, with a way back.

`clients.py` knows the programs, `edits.py` the file formats, `undo.py` what was changed.
"""
