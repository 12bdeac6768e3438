"""An error as brokers tell it to each other: Kafka's number, and our own word where that stands for several codes.

Kafka has one number for a storage that is full, one that failed and a log that is damaged, one for what is not allowed,
what passes a limit and a queue that is full, one for what took too long and what nobody knows the outcome of, one for
a group and a queue that nobody knows, and one for a request and the name of a queue that are not valid. A broker goes
by which of them it is, so the word is told beside the number: in a tagged field of the partition (Fetch,
AddPartitionsToTxn, WriteTxnMarkers, TxnOffsetCommit), or in CopySegment and Forward, which have no tags.

While brokers of two releases work together, the earlier ones pass over the word and read the number as they always did.
From them comes a number alone: it is read as the code that is true of all it may stand for. So is one beside a word
that a later release has made. Numbers of our own in place of Kafka's would be shorter; but an earlier release takes a
number it does not know for something that passes, and would ask again without end where a limit is meant.
"""

from collections import Counter
from typing import Final

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka_wire import errors

TAG: Final = 20001
"""Of the field with the word, far away from Kafka's own."""

_MEANINGS: Final = Counter(errors.KAFKA_CODES.values())
_TRUE_OF_ALL: Final = {
    errors.KAFKA_STORAGE_ERROR: Code.STORAGE_FAILED,  # full or damaged, it did not do what it should
    errors.POLICY_VIOLATION: Code.NOT_ALLOWED,  # by a limit, perhaps
    errors.REQUEST_TIMED_OUT: Code.TIMED_OUT,  # whatever may come of it
    errors.INVALID_REQUEST: Code.INVALID_REQUEST,  # in the name of a queue, perhaps
    errors.GROUP_ID_NOT_FOUND: Code.GROUP_NOT_FOUND,  # whoever knows no queue of a group
}
_BY_NUMBER: Final = {
    **{number: code for code, number in errors.KAFKA_CODES.items()},
    **_TRUE_OF_ALL,
    **dict.fromkeys(errors.NOT_AUTHORISED.values(), Code.NOT_AUTHORISED),
}
_BY_WORD: Final = {code.value: code for code in Code}


def word_of(error: PenstockError) -> str:
    """What is to be told beside the number of an error; empty where that says it all."""
    return error.code.value if _MEANINGS[errors.kafka_code(error)] > 1 else ""


def code_of(number: int, word: str = "") -> Code | None:
    """Our code for what a broker told; None for no error."""
    if number == errors.NONE:
        return None
    code = _BY_WORD.get(word)
    if code is not None and errors.KAFKA_CODES[code] == number:
        return code
    return _BY_NUMBER.get(number, Code.NOT_AVAILABLE)
