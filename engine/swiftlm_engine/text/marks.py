"""Marks: how one string carries the difference between a control token and its spelling.

A model that writes about `<|call|>` and a model that calls produce the same text; only the token
ids differ. So a control token that a parser waits for enters the text behind `MARK`, a Unicode
noncharacter, and its spelling without it. Every other part of this package works on plain strings.
"""

MARK = "\uffff"


def marked(text: str) -> str:
    """The text of a control token as parsers look for it."""
    return MARK + text


def unmarked(text: str) -> str:
    """The text as a person would read it."""
    return text.replace(MARK, "") if MARK in text else text
