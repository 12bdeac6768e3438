"""What can go wrong between Spark and a topic, each kind told apart by its class."""


class SourceError(Exception):
    """A read or write that cannot go on; the message names the thing, the value and the way out."""


class OptionError(SourceError, ValueError):
    """An option nobody knows, or a value it cannot have."""


class FormatError(SourceError, ValueError):
    """A schema that cannot be read or has no columns to give."""


class DataLossError(SourceError):
    """Records between two offsets are gone, or the topic is another one than it was."""
