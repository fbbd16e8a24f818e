"""The last step: what all workers have made is held against the law, and published."""

from __future__ import annotations

from collections.abc import Iterable

from shardwriter.cluster.keyed import KIND, keys_digest
from shardwriter.cluster.place import Place, facts_of
from shardwriter.cluster.results import Facts, MadeShard
from shardwriter.cluster.task import Identity, Task
from shardwriter.dataset.manifest import Manifest, SealedShard
from shardwriter.errors import FeatureError, LawViolation, TooManyErrors
from shardwriter.formats import canonical
from shardwriter.schema.data_warnings import as_error
from shardwriter.schema.record_stats import Learnt
from shardwriter.writing.gather import gather
from shardwriter.writing.making import finish
from shardwriter.writing.options import RunOptions
from shardwriter.writing.part import Done
from shardwriter.writing.publication import finish_committed, finished
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.run_directory import RunDirectory


def publish_shards(task: Task, values: Iterable[bytes]) -> Manifest:
    """Publish a dataset.

    Args:
        task: What was to be done.
        values: The finished shards, in any order; empty ones are passed over.

    Raises:
        LawViolation: Shards are missing, or not what the law gives; nothing is published.
        TooManyErrors: More items were skipped than may be.
        FeatureError: There is a warning about the data, with ``strict``.
    """
    place, num_shards = task.place, task.place.num_shards
    total = Facts(Learnt.of(task.label, num_shards))
    sealed: dict[int, SealedShard] = {}
    files: dict[int, tuple[str, str]] = {}
    for data in filter(None, values):
        shard = MadeShard.from_bytes(data, num_shards)
        if shard.shard not in sealed:  # a runner may deliver twice what was tried twice
            sealed[shard.shard] = shard.sealed
            files[shard.shard] = shard.path, shard.index_path
            total.merge(shard.facts)
    num_items = (total.num_items or 0) if task.num_items is None else task.num_items
    identity = task.identity or _identity_of_keys(task, total.key_sum, num_items)
    with place.claimed() as run:
        published = _published(run, place, identity)
        if published is not None:
            return published
        missing = [shard for shard in range(num_shards) if shard not in sealed]
        if missing:
            raise LawViolation(f"{len(missing):,} shards were not made, shard {missing[0]} first")
        _check_budget(task.options, total)
        done = Done(total.learnt, sealed, total.gaps, total.errors)
        outcome = gather(task.job, Kept(num_shards), [done], num_items)
        for warning in outcome.warnings if task.options.strict else ():
            raise as_error(warning, FeatureError)
        run.adopt(files)
        return finish(
            run,
            outcome,
            place.output,
            job=identity.job,
            source=identity.source,
            order=task.order,
            packing=task.packing,
            dali=task.options.dali_index,
        )


def _published(run: RunDirectory, place: Place, identity: Identity) -> Manifest | None:
    """Return the manifest where an earlier attempt has published; finish what one has committed.

    Raises:
        RunError: Another job has taken the place.
    """
    finish_committed(run)
    if facts_of(run).get("launch") == place.launch and place.is_as_it_was:
        return None
    manifest = finished(run)
    if manifest is not None and manifest.job == identity.job:
        run.discard()
        return manifest
    raise place.lost()


def _check_budget(options: RunOptions, facts: Facts) -> None:
    errors = facts.errors
    if options.max_errors is not None and len(errors) > options.max_errors:
        last = max(errors, key=lambda entry: int(entry["index"]))
        raise TooManyErrors(
            f"{len(errors):,} items gave an error, and {options.max_errors:,} may; the last: item "
            f"{last['index']}: {last['message']}",
            hint="mend the data or the map, or allow more (--max-errors)",
        )


def _identity_of_keys(task: Task, key_sum: int, num_items: int) -> Identity:
    """Return what the manifest says of items that came with their keys."""
    source = {"digest": canonical.digest(keys_digest(key_sum, num_items)), "kind": KIND}
    options = {**task.bytes_options, "order": dict(task.order)}
    return Identity(canonical.digest({"options": options, "source": source}), source)
