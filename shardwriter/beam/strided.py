"""Strategy A: each shard is a job of its own, and nothing is shuffled.

Whoever is given a shard lists its items (s, s + N, s + 2N, ...), loads and encodes them and writes
the shard. That takes a source that has any item at hand.
"""

from __future__ import annotations

import numpy as np

from shardwriter.beam.place import Place, new_attempt
from shardwriter.beam.results import Facts, MadeShard
from shardwriter.dataset.index import columns
from shardwriter.dataset.layout import Gaps
from shardwriter.engines.growing import open_record_writer
from shardwriter.formats.crc32c import crc32c
from shardwriter.job import Job
from shardwriter.runs.kept import Kept
from shardwriter.runs.record_checks import last_piece
from shardwriter.shards.pieces import read_piece
from shardwriter.shards.shard import ShardFile
from shardwriter.worker import new_slot


def write_shard(
    job: Job,
    place: Place,
    shard: int,
    *,
    skip_errors: bool,
    max_errors: int | None,
    strict: bool = False,
) -> MadeShard:
    """Write one shard.

    Args:
        job: What to write.
        place: Where.
        shard: Its number.
        skip_errors: Whether an item that gives an error leaves a gap.
        strict: Whether a warning about an item is its error.
        max_errors: How many may; None for any number.

    Raises:
        ShardwriterError: An item is at fault, or the file system.
        RunChanged: An item gives another record now than when the shard was finished.
    """
    done = place.done(shard)
    if done is not None:
        if place.is_resumed:
            _check_last_record(job, place, done)
        return done
    storage, packing = place.storage, job.packing
    attempt = new_attempt()
    path, index_path = place.shard_path(shard, attempt), place.index_path(shard, attempt)
    kept = Kept(job.num_shards)
    worker = job.worker(shard, job.num_shards, [shard], new_slot())
    items = job.encoder(kept, worker, skip_errors=skip_errors, strict=strict)
    facts = Facts(items.encoder.learnt)
    with ShardFile(
        storage,
        path,
        index_path,
        lambda on_flush: open_record_writer(
            storage, path, packing, on_flush, new=place.writes_final_names
        ),
        compressed=not packing.is_plain,
    ) as shard_file:
        write = shard_file.write
        for index, made in items.records(job.items_of([shard], kept)):
            if type(made) is bytes:
                write(made)
                continue
            facts.note_gap(index, made, max_errors)
        items.leave()
        facts.num_items = job.num_items
        sealed = shard_file.seal()
    made_shard = MadeShard(shard, sealed, path, index_path, facts)
    place.note_done(made_shard)
    return made_shard


def _check_last_record(job: Job, place: Place, done: MadeShard) -> None:
    """Make the last record of a shard again: not all that decides bytes is known by its hash."""
    num_records, compression = done.sealed.num_records, job.packing.compression
    if not num_records:
        return
    rows = np.frombuffer(place.storage.read(done.index_path) or b"", "<u8")
    begin, end = last_piece(rows[:: columns(compression)], compression)
    record = read_piece(done.path, begin, end, compression)[-1]
    index = Gaps(sorted(done.facts.gaps), job.num_shards).item_index(done.shard, num_records - 1)
    for item_index, item in job.selection.items_at(np.array([index])):
        job.check_record(item_index, item, (len(record), crc32c(record)))
