"""Topic settings: defaults, precedence, and errors that name the key, the value and what is allowed."""

import pytest

from penstock.engine.topic_config import SETTINGS, check_settings, make_config
from penstock.errors import Code, PenstockError
from penstock.storage.log.options import Flush, LogOptions


def test_the_defaults_are_those_of_the_log() -> None:
    config = make_config({}, {})
    assert config.log == LogOptions()
    assert config.given == {}
    for setting in SETTINGS.values():
        setting.check(setting.default)
        assert setting.documentation.endswith(".")


def test_a_topics_own_settings_come_before_the_brokers() -> None:
    config = make_config({"retention.ms": "5"}, {"retention.ms": "6", "segment.bytes": "2048", "flush": "interval"})
    assert (config.log.retention_ms, config.log.segment_bytes, config.log.flush) == (5, 2048, Flush.INTERVAL)
    assert config.given == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.ms", "soon", "retention.ms is 'soon'; allowed: a whole number"),
        ("retention.ms", "-2", "from -1"),
        ("segment.bytes", "1023", "from 1024"),
        ("segment.bytes", str(1 << 31), "to 2147483647"),
        ("flush", "never", "commit or interval or os"),
        ("cleanup.policy", "compress", "delete, compact"),
        ("cleanup.policy", "delete,delete", "delete, compact"),
        ("cleanup.policy", " , ", "delete, compact"),
        ("compression.type", "lzma", "zstd"),
        ("retention.ms", "1_000", "whole number"),
        ("retention.ms", "\u0667", "whole number"),
        ("x" * 2_000_000, "1", "config show --topic-settings'"),
        ("message.timestamp.type", "createtime", "CreateTime or LogAppendTime"),
        ("min.insync.replicas", "0", "from 1"),
        ("retention.hours", "1", "did you mean retention"),
        ("zzz", "1", "config show --topic-settings'"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str, text: str) -> None:
    with pytest.raises(PenstockError) as refused:
        check_settings({name: value})
    assert refused.value.code is Code.INVALID_CONFIG
    assert text in str(refused.value)
