"""Foreign code and foreign data, in processes that may be stopped: templates, tokenizers, grammars.

Native code that loops or eats memory cannot be stopped within a process. It can be in another.
"""
