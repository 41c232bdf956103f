"""The one way a conversion fails on its input."""


class ConvertError(Exception):
    """The file cannot become a model; the message says what is wrong and what would work."""
