"""Publication: how what lies in a run directory becomes final, in steps that only go forward.

::

    all shards sealed and synced -> commit.json
    -> the old manifest away -> shards, .idx, index, ledgers -> TFDS's files -> the new manifest
    -> other generations away -> the run directory away

Before commit.json exists nothing outside the run directory was touched. After it exists the
publication can only be finished: whoever finds it goes through the same list of steps, each of
which can be repeated, and the manifest comes last. So a final name is never partial.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

from shardwriter.dataset import (
    DALI_INDEX_SUFFIX,
    KINDS,
    MAX_EXPANDED_GAPS,
    IndexEntry,
    Manifest,
    Output,
    SealedShard,
    ShardPattern,
    assignment_error,
    dali_index,
    error_log_file,
    generations,
    index_chunks,
    index_head,
    is_url,
    lost_items_file,
    manifest_file,
    parse_manifest,
    pattern_from_template,
)
from shardwriter.errors import (
    AssignmentError,
    ManifestError,
    OutputExists,
    StorageError,
    python_words,
)
from shardwriter.formats import PLAIN, Compression, Packing, canonical, clean, extend_crc32c
from shardwriter.schema import to_manifest
from shardwriter.storage import (
    LocalStorage,
    Storage,
    each,
    each_in_turn,
)
from shardwriter.writing.engine import WriteResult
from shardwriter.writing.journal import Retry
from shardwriter.writing.options import RunOptions
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.tfds import adding_split, check_folder, publishing_split, remove_split

COMMIT: Final = "commit.json"
_DALI_MARK: Final = "dali"  # this run has .idx files to publish
_LEDGER_MARK: Final = "with-ledger"  # this run has a ledger to publish
_LEDGER: Final = "errors.jsonl"
_LOST_MARK: Final = "with-lost"  # and a list of what is lost
_LOST: Final = "lost.jsonl"
_READ_BYTES: Final = 1 << 22
_RESUME: Final = "`shardwriter write --resume` goes on with it"


def existing_files(file_names: list[str], name: str, pattern: ShardPattern | None) -> str | None:
    """Tell which files of a folder are a dataset of a name; None where none are."""
    found = list(generations(file_names, name, [pattern]))
    if found:
        return found[0].template.replace("{shard}", "*")
    return "its manifest" if manifest_file(name) in file_names else None


def is_committed(run: RunDirectory) -> bool:
    """Tell whether a publication was begun that is not finished."""
    return run.storage.size(run.file(COMMIT)) is not None


def finished_manifest(run: RunDirectory) -> Manifest | None:
    """Return the manifest of the finished dataset that is there; None where there is none."""
    path = os.path.join(run.directory, manifest_file(run.name))
    try:
        data = run.storage.read(path)
        if data is None:
            return None
        manifest = parse_manifest(data, path)
        if len(manifest.gaps) <= MAX_EXPANDED_GAPS:
            return manifest
        index_bytes = run.storage.size(os.path.join(run.directory, manifest.index.file))
        return parse_manifest(data, path, index_bytes or 0)
    except (StorageError, ManifestError):
        return None


def check_output(
    run: RunDirectory, *, overwrite: bool, pattern: ShardPattern | None = None
) -> None:
    """Finish what was committed, and refuse to destroy what is there.

    Args:
        run: The claimed run directory.
        overwrite: Whether a dataset may be replaced, and an unfinished run discarded.
        pattern: What is to be written, with any N.

    Raises:
        OutputExists: A dataset or an unfinished run of this name is there, without
            ``overwrite``.
        StorageError: What was committed to can not be read, or is not there.
    """
    finish_committed(run, overwrite=overwrite)
    if overwrite:
        return
    if run.is_resumable:
        raise OutputExists(
            f"an unfinished run of {run.name!r} is there",
            path=run.path,
            hint=("a Beam job is at it, or has failed" if run.is_beam_run else _RESUME)
            + "; --overwrite discards it and starts again",
        )
    taken = existing_files(run.storage.list(run.directory), run.name, pattern)
    if taken is not None:
        run.discard()
        raise OutputExists(
            f"a dataset {run.name!r} is there already ({taken})",
            path=run.directory,
            hint="--overwrite replaces it once the new one is whole; or choose another name",
        )


def begin_run(run: RunDirectory, facts: Mapping[str, Any]) -> None:
    """Begin a run: what it replaces goes into run.json with the other facts."""
    run.begin({"replaces": replaced_files(run), **facts})


def replaced_files(run: RunDirectory) -> tuple[str, int] | None:
    """Return the files of the dataset that is there, as its manifest has them: pattern and N."""
    manifest = finished_manifest(run)
    return None if manifest is None else (manifest.pattern.template, manifest.num_shards)


def write_index(
    run: RunDirectory,
    pattern: ShardPattern,
    shards: list[SealedShard],
    gaps: list[int],
    *,
    compression: Compression = "none",
    dali: bool,
) -> IndexEntry:
    """Join the shards' indexes into the dataset's, and make ``.idx`` files if asked."""
    numbers = range(len(shards))
    counts = each(run.storage, lambda shard: run.index_rows(shard, compression), numbers)
    found = each_in_turn(run.storage, lambda shard: run.index_columns(shard, compression), numbers)
    head = index_head(counts, KINDS[compression], len(gaps))
    path = run.file("index")
    crc = size = 0
    with closing(run.storage.create(path)) as file:
        for chunk in index_chunks(found, head, gaps):
            file.write(chunk)
            crc = extend_crc32c(crc, chunk)
            size += len(chunk)
        run.storage.sync(path)
    if dali:
        run.write_synced(_DALI_MARK, b"")
        each(run.storage, lambda shard: _write_dali_index(run, shard), numbers)
    else:
        run.storage.delete(run.file(_DALI_MARK))  # of an attempt that was to make them
    return IndexEntry(pattern.index_file, size, crc)


def _write_dali_index(run: RunDirectory, shard: int) -> None:
    path = run.file(f"dali-{shard:05d}")
    with closing(run.storage.create(path)) as file:
        file.write(dali_index(run.index_columns(shard, "none")[0]))
        run.storage.sync(path)


def publish(run: RunDirectory, manifest: Manifest, ledger: bytes = b"", lost: bytes = b"") -> None:
    """Commit to this manifest and give every file its final name; see :func:`commit`."""
    commit(run, manifest, ledger, lost)
    complete(run)


def complete(run: RunDirectory) -> None:
    """Finish the publication of a run that was committed to."""
    roll_forward(run)
    run.discard()


def commit(
    run: RunDirectory,
    manifest: Manifest,
    ledger: bytes = b"",
    lost: bytes = b"",
    beside: Sequence[Manifest] = (),
) -> None:
    """Commit to this manifest: from now on its publication can only be finished.

    Args:
        run: Where the files are.
        manifest: What they are.
        ledger: The lines of ``<name>.errors.jsonl``; it is made when there are some.
        lost: Those of ``<name>.lost.jsonl``, likewise.
        beside: Those of other splits, which are committed to with it.

    Raises:
        StorageError: A final name can not be given; nothing outside this folder was touched.
        OptionError: A split of a TFDS dataset does not go with the others; likewise.
    """
    check_names(run, manifest.pattern)
    for lines, mark in ((ledger, _LEDGER_MARK), (lost, _LOST_MARK)):
        if not lines:
            run.storage.delete(run.file(mark))  # of an attempt that had some
    # What is there, and what is not, is so on the disk before the commit.
    run.storage.sync_directory(run.path)
    for lines, file_name, mark in ((ledger, _LEDGER, _LEDGER_MARK), (lost, _LOST, _LOST_MARK)):
        if lines:
            run.write_synced(file_name, lines)
            run.write_synced(mark, b"")
    with adding_split(run, manifest, beside):
        run.write_synced(COMMIT, manifest.dumps().encode("ascii"))


def check_names(run: RunDirectory, pattern: ShardPattern) -> None:
    """Refuse what could not be finished after the commit.

    Raises:
        StorageError: A folder has the final name of a file.
    """
    names = [*pattern.shard_files, pattern.index_file, pattern.manifest_file]
    names += [error_log_file(pattern.name), lost_items_file(pattern.name)]

    def check_name(name: str) -> None:
        target = os.path.join(run.directory, name)
        if run.storage.is_directory(target):
            raise StorageError("a folder of this name is in the way", path=target)

    each(run.storage, check_name, names)


def finish_committed(run: RunDirectory, *, overwrite: bool = False) -> None:
    """Finish what another process has committed to, if there is anything, once it is all there.

    Args:
        run: The claimed run directory.
        overwrite: Whether what can not be finished is discarded, where nothing was published.

    Raises:
        StorageError: ``commit.json`` does not tell what was committed to; or a file is gone, or is
            not the one that was committed to. Nothing was changed.
    """
    if not is_committed(run):
        return
    try:
        manifest = _committed(run)
        if not _is_done(run, manifest):
            _check_files(run, manifest)
    except StorageError as error:
        beside = _half_published(run)
        if overwrite and not beside:
            run.empty()
            return
        folder = clean(run.path)
        if beside:
            paths = ", ".join(clean(os.path.join(run.directory, name)) for name in beside)
            error.hint = (
                f"files of two runs may lie side by side: remove {folder} and {paths}, and write "
                "the dataset again"
            )
        else:
            error.hint = f"nothing was published: --overwrite starts again, or remove {folder}"
        raise
    roll_forward(run)


def _committed(run: RunDirectory) -> Manifest:
    """Return the manifest that was committed to.

    Raises:
        StorageError: It can not be used, or is of another dataset.
    """
    path = run.file(COMMIT)
    try:
        manifest = parse_manifest(run.read(COMMIT), path)
    except ManifestError as error:
        raise StorageError(f"a publication was begun, and {error.message}", path=path) from None
    if manifest.name != run.name:
        raise StorageError(
            f"a publication was begun, and of another dataset: {manifest.name!r}", path=path
        )
    return manifest


def _half_published(run: RunDirectory) -> list[str]:
    """Return the files beside a run directory that may be of two runs, as globs.

    A publication takes the old manifest away before it touches a shard, and its own comes last: so
    where one can be read, all files are those of that dataset.
    """
    if finished_manifest(run) is not None:
        return []
    names = run.storage.list(run.directory)
    found = generations(names, run.name, [_replaced(run)])
    beside = [pattern.template.replace("{shard}", "*") for pattern in found]
    return beside + [name for name in (manifest_file(run.name),) if name in names]


def _check_files(run: RunDirectory, manifest: Manifest) -> None:
    """Refuse what was committed to where a file of it is gone, or is another one."""
    numbers = range(manifest.num_shards)
    each(run.storage, lambda shard: _check_shard(run, manifest, shard), numbers)
    index = manifest.index
    _check_file(run, run.file("index"), manifest.pattern.index_file, index.file_bytes)


def _is_done(run: RunDirectory, manifest: Manifest) -> bool:
    """Return whether everything of a publication was done but the cleaning.

    The manifest there may have the same text and be of an older run of the same job: only where
    the index has left, which is the last to go, is it the new one.
    """
    final = os.path.join(run.directory, manifest.pattern.manifest_file)
    return run.storage.size(run.file("index")) is None and _holds(run, final, run.read(COMMIT))


def _check_shard(run: RunDirectory, manifest: Manifest, shard: int) -> None:
    """Refuse a shard that is not the one that was committed to.

    Where it lies under a name that ``files.json`` tells, its checksum is compared too.
    """
    sealed = manifest.shards[shard]
    source, final = run.shard_path(shard), manifest.pattern.shard_file(shard)
    _check_file(run, source, final, sealed.file_bytes)
    if shard in run.adopted and run.storage.size(source) is not None:
        expected = sealed.crc32c if sealed.file_crc32c is None else sealed.file_crc32c
        found = run.storage.crc32c(source)
        if found is None and not is_url(source):
            found = _crc_of(run, source)
        if found not in (None, expected):
            raise _gone(run, source, "is not the one that was committed to")


def _check_file(run: RunDirectory, source: str, final: str, file_bytes: int) -> None:
    found = run.storage.size(source)
    if found is None:
        found = run.storage.size(os.path.join(run.directory, final))
    if found != file_bytes:
        raise _gone(run, source, "is gone")


def _crc_of(run: RunDirectory, path: str) -> int:
    crc = 0
    with run.storage.open(path) as file:
        while data := file.read(_READ_BYTES):
            crc = extend_crc32c(crc, data)
    return crc


def _gone(run: RunDirectory, path: str, what: str) -> StorageError:
    return StorageError(
        f"a file of the run that is to be published {what}",
        path=path,
        hint=f"remove {clean(run.path)} and write the dataset again",
    )


def roll_forward(run: RunDirectory) -> None:
    """Go through the steps of a publication; those already done change nothing.

    Afterwards the run directory is empty, and still claimed.
    """
    text = run.read(COMMIT)
    manifest = _committed(run)
    pattern, storage = manifest.pattern, run.storage
    # A process that was killed may have left its name in memory only.
    storage.sync_directory(run.path)
    final = os.path.join(run.directory, pattern.manifest_file)
    if _is_done(run, manifest):
        _clean_up(run, pattern)
        return
    with_dali = storage.size(run.file(_DALI_MARK)) is not None
    storage.delete(final)
    storage.sync_directory(run.directory)
    remove_split(run, manifest)

    def publish_shard(shard: int) -> None:
        target = os.path.join(run.directory, pattern.shard_file(shard))
        sealed = manifest.shards[shard]
        crc = sealed.crc32c if sealed.file_crc32c is None else sealed.file_crc32c
        _publish(run, run.shard_path(shard), target, sealed.file_bytes, crc)
        if with_dali:
            storage.publish(run.file(f"dali-{shard:05d}"), target + DALI_INDEX_SUFFIX)
        else:
            storage.delete(target + DALI_INDEX_SUFFIX)  # of an older run

    each(storage, publish_shard, range(manifest.num_shards))
    for file_name, mark, final_name in (
        (_LEDGER, _LEDGER_MARK, error_log_file(run.name)),
        (_LOST, _LOST_MARK, lost_items_file(run.name)),
    ):
        target = os.path.join(run.directory, final_name)
        if storage.size(run.file(mark)) is not None:
            storage.publish(run.file(file_name), target)
        else:
            storage.delete(target)  # of an older run
    target = os.path.join(run.directory, pattern.index_file)
    _publish(run, run.file("index"), target, manifest.index.file_bytes, manifest.index.crc32c)
    storage.sync_directory(run.directory)
    run.write_synced("manifest", text)
    with publishing_split(run, manifest):
        storage.publish(run.file("manifest"), final)
        storage.sync_directory(run.directory)
    _clean_up(run, pattern)


def _publish(run: RunDirectory, source: str, target: str, file_bytes: int, crc: int) -> None:
    """Give a file its final name; one that has it already must be there, and not an older one."""
    storage = run.storage
    if source == target or storage.size(source) is None:
        if storage.size(target) != file_bytes or storage.crc32c(target) not in (None, crc):
            raise _gone(run, source, "is gone")
        if source == target:
            return
    storage.publish(source, target)


def _holds(run: RunDirectory, path: str, text: bytes) -> bool:
    try:
        return run.storage.read(path) == text
    except StorageError:
        return False


def _clean_up(run: RunDirectory, current: ShardPattern) -> None:
    """Delete other generations, then everything in the run directory but the lock."""
    found = generations(run.storage.list(run.directory), run.name, [_replaced(run)])
    for pattern, shards in found.items():
        if pattern != current:
            each(
                run.storage, lambda path: _delete_shard(run, path), map(pattern.shard_file, shards)
            )
    run.storage.sync_directory(run.directory)
    run.empty(last=COMMIT)


def _delete_shard(run: RunDirectory, file_name: str) -> None:
    path = os.path.join(run.directory, file_name)
    # The shard goes last: it is what tells that there is something to delete.
    run.storage.delete(path + DALI_INDEX_SUFFIX)
    run.storage.delete(path)


def _replaced(run: RunDirectory) -> ShardPattern | None:
    """Return the files of the dataset that this run replaces, as run.json has them."""
    try:
        replaced = run.facts().get("replaces")
        return None if replaced is None else pattern_from_template(*replaced)
    except StorageError:  # it replaces none
        return None


# A dataset that is made in its run directory: claimed first, prepared, published at the end.


@contextmanager
def claimed(
    output: Output, run_options: RunOptions, storage: Storage | None = None
) -> Iterator[RunDirectory]:
    """Hold the run directory of an output while a dataset is made in it.

    After an error what a worker has marked stays, and can be gone on with. A run that came to no
    mark has nothing worth keeping, and leaves nothing.
    """
    resume = run_options.resume or run_options.retry_errors
    with RunDirectory.claim(output.directory, output.name, storage or LocalStorage()) as run:
        finish_committed(run, overwrite=run_options.overwrite)
        check_output(run, overwrite=run_options.overwrite or resume, pattern=output.pattern(1))
        try:
            if output.tfds is not None:
                check_folder(run.storage, run.directory, output.tfds)
            yield run
        except BaseException as error:  # Ctrl-C and SIGTERM are tidied up too
            with suppress(StorageError):  # it would hide what has happened
                if not is_committed(run):
                    is_kept = run.is_resumable
                    if isinstance(error, KeyboardInterrupt):
                        _note_what_is_kept(error, run, is_kept=is_kept)
                    if not is_kept:
                        run.discard()
            raise


def _note_what_is_kept(error: KeyboardInterrupt, run: RunDirectory, *, is_kept: bool) -> None:
    """Have the traceback of Ctrl-C in Python end with what there is; the commands say it too."""
    if not hasattr(error, "add_note"):  # before Python 3.11
        return
    note = f"nothing of {run.name!r} was published"
    if is_kept:
        note += f"; what is done is kept in {run.path}: --resume goes on with it"
    error.add_note(python_words(note))


def publish_result(
    run: RunDirectory, outcome: WriteResult, output: Output, **facts: Any
) -> Manifest:
    """Publish a dataset, and return its manifest; see :func:`prepared`."""
    manifest = prepared(run, outcome, output, **facts)
    publish(run, manifest, ledger_of(outcome))
    return manifest


def ledger_of(outcome: WriteResult) -> bytes:
    """Return the lines of ``<name>.errors.jsonl``."""
    return "".join(map(canonical.dumps, outcome.errors)).encode("ascii")


def prepared(
    run: RunDirectory,
    outcome: WriteResult,
    output: Output,
    *,
    job: str,
    source: Mapping[str, Any],
    order: Mapping[str, Any],
    packing: Packing = PLAIN,
    dali: bool = False,
    hint: str | None = None,
    retries: Sequence[Retry] = (),
) -> Manifest:
    """Hold the counts against the law, write the index, and return the manifest.

    Raises:
        AssignmentError: The shards are not what the law gives; nothing is published.
    """
    counts = [shard.num_records for shard in outcome.shards]
    breach = assignment_error(counts, outcome.num_items, outcome.gaps)
    if breach is not None:
        shard, expected, count = breach
        raise AssignmentError(
            f"shard {shard} got {count:,} records, and the law gives it {expected:,} of "
            f"{outcome.num_items:,}",
            hint=hint,
        )
    pattern = output.pattern(len(counts))
    index = write_index(
        run, pattern, outcome.shards, outcome.gaps, compression=packing.compression, dali=dali
    )
    return Manifest(
        pattern,
        outcome.num_items,
        outcome.shards,
        outcome.gaps,
        packing.to_json(),
        index,
        job,
        source,
        order,
        outcome.schema,
        outcome.labels,
        {
            **({"retries": list(retries)} if retries else {}),
            **({} if output.tfds is None else {"tfds": output.tfds.to_json()}),
            **to_manifest(outcome.warnings),
        },
    )
