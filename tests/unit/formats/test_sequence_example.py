"""SequenceExamples: what protobuf reads, and what the statistics say of it."""

from __future__ import annotations

import numpy as np
import pytest

from shardwriter.errors import WireError
from shardwriter.formats.example import encode_example
from shardwriter.formats.sequence_example import decode_sequence_example
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.inspect.scan import PayloadStats


def field(tag, *contents):
    content = b"".join(contents)
    assert len(content) < 128
    return bytes([tag, len(content)]) + content


def listed(name, *steps):
    """One entry of FeatureLists."""
    return field(0x0A, field(0x0A, name), field(0x12, *(field(0x0A, step) for step in steps)))


ONE = field(0x1A, field(0x0A, b"\x01"))
TEXTS = field(0x0A, field(0x0A, b"a"), field(0x0A, b"b"))
CONTEXT = encode_example({"id": 7})


def test_context_and_lists_are_read():
    payload = CONTEXT + field(0x12, listed(b"n", ONE, ONE, b""), listed(b"t", TEXTS), listed(b"e"))
    record = decode_sequence_example(payload)
    assert record.context["id"].tolist() == [7]
    assert [None if v is None else v.tolist() for v in record.feature_lists["n"]] == [
        [1],
        [1],
        None,
    ]
    assert record.feature_lists["t"] == [[b"a", b"b"]]
    assert record.feature_lists["e"] == []


def test_the_last_of_two_lists_counts_and_unknown_fields_are_skipped():
    payload = field(0x12, listed(b"n", ONE), listed(b"n", ONE, ONE)) + field(0x7A, b"xyz")
    assert len(decode_sequence_example(payload).feature_lists["n"]) == 2


@pytest.mark.parametrize(
    "payload", [b"\x12\x05\x0a", b"\x12\x02\x0a\x09", b"\x0b", b"\x12\x04\x0a\x02\x0a\xff"]
)
def test_what_is_no_sequence_example_is_an_error(payload):
    with pytest.raises(WireError):
        decode_sequence_example(payload)


def test_lists_are_counted_by_records_and_by_steps():
    records = [CONTEXT + field(0x12, listed(b"n", *[ONE] * k)) for k in (1, 2, 3)]
    records.append(CONTEXT + field(0x12, listed(b"other", TEXTS)))
    stats = PayloadStats(features=True, label="id")
    stats.add([*records, CONTEXT])
    found = stats.features.to_json()
    assert stats.kinds == {"SequenceExample": 4, "Example": 1}
    assert (found["id"]["present"], found["id"]["absent"]) == (5, 0)
    entry = found["n[]"]
    assert (entry["present"], entry["absent"], entry["kinds"]) == (3, 2, {"int64": 3})
    assert entry["steps"] == {"max": 3, "mean": 2.0, "min": 1}
    assert entry["lengths"] == {"max": 1, "mean": 1.0, "min": 1}
    assert entry["numbers"]["count"] == 6
    assert found["other[]"]["lengths"]["max"] == 2
    assert stats.labels.num_labelled == 5


def test_tensorflow_reads_the_same(data_dir, tf):
    path = data_dir / "pytorch+data/test/_fakedata/tfrecord/sequence_example.tfrecord"
    for payload in read_records(path):
        theirs = tf.train.SequenceExample.FromString(payload)
        mine = decode_sequence_example(payload)
        assert set(mine.context) == set(theirs.context.feature)
        assert set(mine.feature_lists) == set(theirs.feature_lists.feature_list)
        for name, steps in mine.feature_lists.items():
            expected = theirs.feature_lists.feature_list[name].feature
            assert len(steps) == len(expected)
            for values, feature in zip(steps, expected, strict=True):
                listed_values = getattr(feature, feature.WhichOneof("kind")).value
                assert np.array_equal(np.asarray(values), np.asarray(list(listed_values)))
