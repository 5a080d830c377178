"""Settings: what is refused, and that the text helps."""

from __future__ import annotations

import pytest

from kvdepot.vllm.config import ConfigError, Settings, parse_settings

DEPOT = {"depot": "tcp://127.0.0.1:7070"}


def test_only_the_depot_is_needed():
    assert parse_settings(DEPOT) == Settings("tcp://127.0.0.1:7070")


@pytest.mark.parametrize(("extra", "words"), [
    ({}, ["needs 'depot'", "tcp://127.0.0.1:7070"]),
    (DEPOT | {"depott": 1}, ["depott", "did you mean 'depot'"]),
    (DEPOT | {"zzz": 1}, ["zzz", "known are", "deadline_share"]),
    ({"depot": "127.0.0.1:7070"}, ["tcp://, tls://, unix:// or file://"]),
    (DEPOT | {"progress_ms": "fast"}, ["progress_ms", "an integer", "'fast'"]),
    (DEPOT | {"progress_ms": True}, ["an integer"]),
    (DEPOT | {"progress_ms": 0}, ["progress_ms must be at least 1"]),
    (DEPOT | {"verify": 1}, ["verify", "true or false"]),
    (DEPOT | {"deadline_share": 0}, ["deadline_share"]),
    (DEPOT | {"lookup_wait_us": 10_000_000}, ["lookup_wait_us must be at most"]),
    (DEPOT | {"progress_ms": 1 << 40}, ["progress_ms must be at most 600000"]),
    (DEPOT | {"linger_ms": float("nan")}, ["linger_ms must be"]),
    (DEPOT | {"warn_every_s": float("nan")}, ["warn_every_s must be"]),
    (DEPOT | {"ack": "soon"}, ["pooled, written, synced"]),
    (DEPOT | {"load": "maybe"}, ["auto, layerwise, async"]),
    (DEPOT | {"clients": 17}, ["clients must be at most 16"]),
    (DEPOT | {"clients": -1}, ["clients must be at least 0"]),
    (DEPOT | {"tenant": ""}, ["1 to 64 bytes"]),
])
def test_refusals_say_what_to_do(extra, words):
    with pytest.raises(ConfigError) as caught:
        parse_settings(extra)
    for word in words:
        assert word in str(caught.value)


def test_whole_numbers_are_accepted_where_fractions_are():
    assert parse_settings(DEPOT | {"deadline_share": 4}).deadline_share == 4.0
