"""DALI's ``readers.tfrecord`` under its iterator: pipelines on the CPU."""

from __future__ import annotations

import os
import struct
import tempfile
from functools import cache, partial
from typing import Any

from answers import Batches, answer, of_every_rank
from nvidia.dali import fn, pipeline_def
from nvidia.dali import tfrecord as features
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator


def example(number: int) -> bytes:
    """Return a ``tf.train.Example`` of ``id``, by hand: small ids only."""
    value = bytes([0x1A, 3, 0x0A, 1, number])
    entry = bytes([0x0A, 2]) + b"id" + bytes([0x12, len(value)]) + value
    inner = bytes([0x0A, len(entry)]) + entry
    return bytes([0x0A, len(inner)]) + inner


@cache
def files(counts: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """Write shards and their indices. DALI looks at no CRC, so they are zero."""
    folder = tempfile.mkdtemp()
    paths, indices = [], []
    number = 0
    for shard, count in enumerate(counts):
        paths.append(os.path.join(folder, f"{shard:05}"))
        indices.append(paths[-1] + ".idx")
        with open(paths[-1], "wb") as file, open(indices[-1], "w") as index:
            for _ in range(count):
                payload = example(number)
                frame = struct.pack("<QI", len(payload), 0) + payload + bytes(4)
                index.write(f"{file.tell()} {len(frame)}\n")
                file.write(frame)
                number += 1
    return paths, indices


def read(policy: str, pad: bool, stick: bool, case: dict[str, Any], rank: int) -> Batches:
    paths, indices = files(tuple(case["counts"]))

    @pipeline_def(batch_size=case["batch"], num_threads=1, device_id=None)
    def pipeline() -> Any:
        record = fn.readers.tfrecord(
            path=paths,
            index_path=indices,
            features={"id": features.FixedLenFeature((), features.int64, -1)},
            shard_id=rank,
            num_shards=case["world"],
            pad_last_batch=pad,
            stick_to_shard=stick,
            name="reader",
        )
        return record["id"]

    iterator = DALIGenericIterator(
        [pipeline()], ["id"], reader_name="reader", last_batch_policy=LastBatchPolicy[policy]
    )
    return [[int(value) for value in batch[0]["id"].flatten()] for batch in iterator]


if __name__ == "__main__":
    answer(
        {
            f"dali-{policy.lower()}{'-padded' if pad else ''}{'-stuck' if stick else ''}": partial(
                of_every_rank, partial(read, policy, pad, stick)
            )
            for policy in ("FILL", "PARTIAL", "DROP")
            for pad, stick in ((False, False), (True, False), (False, True))
        }
    )
