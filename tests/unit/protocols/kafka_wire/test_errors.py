"""Every error has a Kafka code that Kafka knows."""

from kio.schema.errors import ErrorCode

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka_wire import errors


def test_the_table_is_total_and_known_to_kafka() -> None:
    assert set(errors.KAFKA_CODES) == set(Code)
    known = {code.value for code in ErrorCode}
    named = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    assert set(errors.KAFKA_CODES.values()) <= known
    assert {value for value in named if not value >= 200} <= known
    assert errors.NONE not in errors.KAFKA_CODES.values()


def test_what_a_retry_may_help_is_retriable_for_kafka_too() -> None:
    for code in Code:
        if PenstockError(code, "").retriable:
            assert ErrorCode(errors.KAFKA_CODES[code]).retriable, code


def test_names_match_kafkas() -> None:
    for name in ("UNSUPPORTED_VERSION", "INVALID_REQUEST", "UNKNOWN_TOPIC_ID", "FETCH_SESSION_ID_NOT_FOUND"):
        assert ErrorCode(getattr(errors, name)).name == name.lower()


def test_the_text_names_the_way_out_and_has_an_end() -> None:
    assert errors.describe(PenstockError(Code.INVALID_TOPIC, "bad")) == "bad"
    assert errors.describe(PenstockError(Code.STORAGE_FULL, "full", help="free space")) == "full; free space"
    assert len(errors.describe(PenstockError(Code.INVALID_TOPIC, "x" * 100_000))) <= 500
