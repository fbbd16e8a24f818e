"""An unfinished run: whether it is of the same job, and how it is gone on with.

The bytes at the end are those of a run that was never stopped. So everything that decides them must
be what it was: run.json has the options, the source and the code of callables as they were, and a
difference is refused with its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from shardwriter.errors import RunChanged, SchemaConflict
from shardwriter.formats import canonical
from shardwriter.formats.text import clean
from shardwriter.writing.finished import read_ledger
from shardwriter.writing.job import Job
from shardwriter.writing.options import RunOptions
from shardwriter.writing.publication import finished
from shardwriter.writing.record_checks import check_now, check_stable, some_records
from shardwriter.writing.recovery import recover
from shardwriter.writing.resume_state import Kept
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.shapes import RunFacts
from shardwriter.writing.standing import StandingRecords

_NAMES: Final = {
    "compression": "the compression",
    "files": "the number of shards, or the names of the files,",
    "filter": "--filter",
    "indices": "--indices",
    "label": "--label",
    "limit": "--limit",
    "map": "--map",
    "names": "--names",
    "num_shards": "the number of shards",
    "order": "--order, --key, --split, --shuffle or --seed",
    "schema": "--schema",
}
_HASH: Final = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
_OLD_FLOAT: Final = ("float", "float64")  # what lists of float32 were called
_OVERWRITE: Final = "--overwrite discards the run and starts again"
_START_AGAIN: Final = f"put it back as it was, or {_OVERWRITE}"


def go_on(
    job: Job,
    run: RunDirectory,
    facts: Mapping[str, Any],
    run_options: RunOptions,
    notify: Callable[[str], None],
) -> Kept:
    """Take up an unfinished run.

    Args:
        job: The same job as that of the run.
        run: Its directory.
        facts: What run.json would say now.
        run_options: Whether items that gave an error are tried again, and who writes.
        notify: Told how much is kept.

    Raises:
        RunChanged: The job is another, or gives other records.
        SchemaConflict: Two workers have written records whose types do not go together.
    """
    check_stable(job)
    if run.is_of_beam:
        raise RunChanged(
            f"the unfinished run of {run.name!r} is a Beam job's",
            path=run.path,
            hint=f"resume it with Beam; or {_OVERWRITE}",
        )
    before = run.facts()
    check_same(before, facts)
    label = job.record_encoder().labels.feature
    try:
        kept = recover(
            run,
            job.pattern,
            job.packing.compression,
            label=label,
            num_items=job.num_items if job.selection.random_access else None,
            retry_errors=run_options.retry_errors,
            can_continue=run_options.backend == "native",
        )
    except SchemaConflict as error:
        # A map that is mended does not mend the records that stand in the shards.
        error.hint = f"what the run has written so far has both: {_OVERWRITE}"
        raise
    kept = replace(kept, standing=_standing(run, before), retries=before.get("retries", []))
    checks = {}
    if not kept.retries:  # else records stand that other code has made
        num_records = {shard: sealed.num_records for shard, sealed in kept.sealed.items()}
        num_records |= {shard: written.num_records for shard, written in kept.growing.items()}
        checks = some_records(job, run, num_records, kept.gaps)
    if job.selection.random_access:
        check_now(job, checks)
    else:
        kept = replace(kept, checks=checks)
    for note in _told(job, kept):
        notify(note)
    return kept


def _standing(run: RunDirectory, facts: RunFacts) -> StandingRecords | None:
    """Return the records that a run keeps of the dataset that it replaces; None for other runs.

    Raises:
        RunChanged: That dataset is no longer there.
    """
    if "standing_job" not in facts:
        return None
    manifest = finished(run)
    if manifest is None or manifest.job != facts["standing_job"]:
        raise RunChanged(
            f"the dataset {run.name!r}, whose failed items were tried again, is no longer there",
            path=run.path,
            hint=_OVERWRITE,
        )
    return StandingRecords(run.directory, manifest, read_ledger(run))


def check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with the run of another job.

    Args:
        before: What run.json says.
        now: What it would say.

    Raises:
        RunChanged: Names the first field that differs.
    """
    # As both come out of a file.
    now = canonical.loads(canonical.dumps(dict(now)))
    before = _with_types_of_today(before)
    for part in ("options", "source", "plan", "job"):
        for field, old, new in _differences(before.get(part), now.get(part), (part,)):
            hint = _START_AGAIN
            if field[:2] == ("options", "map") and old and new:
                hint = (
                    "put it back and finish the run; then --retry-errors --accept-changed-map "
                    f"makes the items that gave an error with the changed map. Or {_OVERWRITE}"
                )
            raise RunChanged(f"{_what(field)}: {_phrase(old)} then, {_phrase(new)} now", hint=hint)


def _with_types_of_today(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a run with its types as they are called now: float32, not float64."""
    plan = facts.get("plan")
    if not isinstance(plan, dict) or not isinstance(plan.get("schema"), dict):
        return facts
    features = plan["schema"].get("features")
    if not isinstance(features, dict):
        return facts
    types = {
        name: {**entry, "dtype": "float32"}
        if isinstance(entry, dict) and (entry.get("kind"), entry.get("dtype")) == _OLD_FLOAT
        else entry
        for name, entry in features.items()
    }
    return {**facts, "plan": {**plan, "schema": {**plan["schema"], "features": types}}}


def _differences(
    old: Any, new: Any, field: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        # A digest says less than what it was made of.
        for key in sorted(old.keys() | new.keys(), key=lambda key: (key == "digest", key)):
            yield from _differences(old.get(key), new.get(key), (*field, key))
    elif old != new:
        yield field, old, new


def _what(field: tuple[str, ...]) -> str:
    """Name a field of run.json as a person knows it, and as it stands there."""
    part, *rest = field
    path = clean(".".join(field))
    if part == "source":
        return f"the source is not what it was when the run began ({path})"
    if part == "options" and rest and rest[0] in _NAMES:
        code = "the code of " if rest[-1] == "sha256" else ""
        return f"{code}{_NAMES[rest[0]]} is not what it was when the run began ({path})"
    return f"the run that is there is of another job ({path})"


def _phrase(value: Any) -> str:
    text = _HASH.sub(r"\1...", canonical.dumps(value).strip())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _told(job: Job, kept: Kept) -> list[str]:
    share = "" if not job.num_items else f" of {job.num_items:,}"
    whole = len(kept.sealed)
    lines = [
        f"kept {kept.num_records:,} records ({kept.payload_bytes:,} bytes): {kept.num_done:,}"
        f"{share} items need not be done again, {whole:,} of {job.num_shards:,} shards are whole"
    ]
    if not job.selection.random_access and kept.num_done and not kept.is_everything:
        lines.append(
            "the source gives its items one after the other: those that are done are read again "
            "and dropped"
        )
    return lines
