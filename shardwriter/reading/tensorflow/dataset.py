"""The pipeline of ``tf.data``, put together.

    train = tf_dataset("out/train@16", batch_size=64, shuffle=True)
    model.fit(train.map(lambda x: (x["image"], x["label"])), epochs=3)

What comes out is a plain ``tf.data.Dataset``: a graph, without Python in it. The shards are proven
to be there and whole (sizes, counts, the index) before it is made, so that training does not find
out.

GPUs are left alone: everything stands on the CPU, and where TensorFlow has not looked at its GPUs
yet it is told to take their memory as it needs it (``TF_FORCE_GPU_ALLOW_GROWTH=true``, unless that
variable is set), and not all of it at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import tensorflow as tf

from shardwriter.dataset.rank_partition import Uneven, split_share
from shardwriter.errors import DataError, OptionError
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.record_files import (
    RecordFiles,
    deals_files,
    files_of,
    opened_dataset,
    reading_all,
)
from shardwriter.reading.resampling import Resampling, Target, class_mix
from shardwriter.reading.tensorflow.blocks import as_it_stands
from shardwriter.reading.tensorflow.files import FILES_AHEAD, exactly, in_any_order, in_source_order
from shardwriter.reading.tensorflow.parsing import element_parser, schema_spec
from shardwriter.reading.tensorflow.resampling import resampled_stream

_SHUFFLE_BYTES: Final = 128 << 20  # payload bytes that wait in the buffer of a shuffle
_MAX_SHUFFLE_RECORDS: Final = 1 << 16


def tf_dataset(
    data: str | os.PathLike[str] | Dataset,
    *,
    batch_size: int | None = None,
    drop_remainder: bool = False,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int | None = None,
    shuffle_buffer: int | None = None,
    parse: bool | Mapping[str, Any] = True,
    features: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    deterministic: bool = True,
    cycle_length: int = 16,
    max_open_files: int | None = None,
    prefetch: int | None = None,
    input_context: Any = None,
    rank: int | None = None,
    world: int | None = None,
    uneven: Uneven | None = None,
    resample: Target | Resampling | None = None,
    num_samples: int | None = None,
    hide_gpus: bool = False,
    notify: Callable[[str], None] | None = None,
) -> Any:
    """Return a ``tf.data.Dataset`` of a dataset's records.

    With no options it gives every record once, in source order. Where shards are more than
    ``max_open_files`` they are read in blocks of 64 MiB, which only plain shards can be.

    Args:
        data: A path as `shardwriter.open` takes it, or what it returned.
        batch_size: Records in a batch of this rank; None for single records. A batch is parsed at
            once, which is several times faster than parsing records one by one.
        drop_remainder: Leave the last batch out where it is not full.
        shuffle: Read the shards in a random order, ``cycle_length`` at a time, and shuffle what
            they give in a buffer.
        seed: Of the shuffle and of resampling. (``tf.random.set_seed`` counts, too.)
        epoch: The order is a function of seed and epoch, the same in every iteration, so that
            ``.skip(steps)`` goes on with an epoch that was stopped. None: every iteration has an
            order of its own; they repeat from the first when the dataset is made anew.
        shuffle_buffer: Records in the buffer; None for 128 MiB of them, at most 65,536.
        parse: True for a dict of tensors by the schema of the manifest; see
            :mod:`shardwriter.reading.tensorflow.parsing` for shapes, dtypes and absent features. A
            mapping is given to ``tf.io.parse_example`` as it is. False for serialized examples.
        features: Names of the features to parse; None for all.
        defaults: What absent features are, by name; None for 0, NaN, False and ``""``.
        deterministic: False lets whichever file is first be first: faster, and in no order.
        cycle_length: Files that are read at a time where the order is not that of the source.
        max_open_files: How many may be open for source order; None for half of what this process
            may open, at most 128.
        prefetch: Elements made ahead at the end of the pipeline; None lets TensorFlow choose.
        input_context: The ``tf.distribute.InputContext`` that a strategy gives; says rank and
            world. Batches then are those of a replica:
            ``context.get_per_replica_batch_size(global_batch_size)``.
        rank: This process, from 0.
        world: Number of processes. Each reads its own records, all the same number of them: the
            same ones in every epoch, also where they are shuffled. (`Dataset.shuffle` and torch's
            loader deal them anew.)
        uneven: What happens where ``world`` does not divide the records: ``drop``, ``pad`` or
            ``wrap``. With ``pad`` there is one feature more, ``is_pad``; without parsing elements
            are pairs ``(serialized, is_pad)``.
        resample: Drop and repeat records so that classes have these shares: ``"uniform"``,
            ``{class: share}``, or a plan of :func:`class_mix`. It is seeded and reads one copy of
            the input.
        num_samples: Records of a resampled epoch on each rank; None for what a pass gives on
            average. Data is read again where a pass gives less.
        hide_gpus: Take all GPUs from TensorFlow, for programs that train with JAX or PyTorch.
        notify: Told what is worth knowing, in sentences.

    Raises:
        OptionError: Options do not go together, or with what the dataset is.
        UnequalSteps: Ranks would not take the same steps, and ``uneven`` does not say what to do.
        DataError: The dataset is not whole.
    """
    if resample is None and num_samples is not None:
        raise OptionError("num_samples is for resampling", hint="use .take(n)")
    for name, value in (
        ("batch_size", batch_size),
        ("shuffle_buffer", shuffle_buffer),
        ("cycle_length", cycle_length),
        ("max_open_files", max_open_files),
        ("num_samples", num_samples),
    ):
        if value is not None and value < 1:
            raise OptionError(f"{name} is {value}", hint="give a number from 1 on")
    for name, value in (("seed", seed), ("epoch", epoch)):
        if value is not None and not 0 <= value < 1 << 63:
            raise OptionError(f"{name} is {value}", hint="give a number from 0 to 2^63 - 1")
    rank, world = _rank_and_world(input_context, rank, world)
    _spare_gpus(hide_gpus)
    opened = opened_dataset(data, notify)
    if max_open_files is None:
        max_open_files = opened._core.reader.pool.max_open
    plan = class_mix(opened, resample) if isinstance(resample, (str, Mapping)) else resample
    if not isinstance(plan, Resampling | None):
        raise OptionError(
            f"resample is {resample!r}",
            hint='give "uniform", {class: share}, or a plan of class_mix',
        )
    files = files_of(opened)
    share = split_share(files.num_records, rank, world, _policy(uneven, plan))
    parser = element_parser(
        opened,
        parse,
        features,
        defaults,
        is_batch=batch_size is not None,
        has_pads=uneven == "pad",
    )
    in_order = deterministic and not shuffle
    if notify is not None and world > 1 and not deals_files(files, share, in_order):
        notify(reading_all(files, world))
    # Nothing of it needs a GPU, and an operation that stands on one would take its memory.
    with tf.device("/cpu:0"):
        if in_order:
            stream = in_source_order(files, share, max_open_files)
        else:
            stream = in_any_order(
                files,
                share,
                cycle_length=min(cycle_length, max(1, max_open_files // FILES_AHEAD)),
                seed=seed if shuffle else None,
                epoch=epoch,
                deterministic=deterministic,
            )
        if plan is None:
            stream = exactly(stream, opened, files, share, mark=uneven == "pad")
            length = share.num_samples
        else:
            length = num_samples or max(1, int(plan.expected_records) // world)
            stream = resampled_stream(
                stream,
                plan,
                opened.features[plan.label].type.kind,
                mean_bytes=files.mean_bytes,
                seed=seed,
                epoch=epoch,
                num_samples=length,
                expected=plan.expected_records / world,
            )
        if shuffle and length > 1:
            size = shuffle_buffer or _shuffle_buffer(files)
            stream = stream.shuffle(
                min(size, length),
                seed=_mixed(seed, epoch),
                reshuffle_each_iteration=epoch is None,
            )
        if batch_size is not None:
            stream = stream.batch(batch_size, drop_remainder)
        if parser is not None:
            stream = stream.map(as_it_stands(parser), tf.data.AUTOTUNE, deterministic=deterministic)
        stream = stream.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)
        return stream.with_options(_options(deterministic, is_split=world > 1))


def feature_spec(
    data: str | os.PathLike[str] | Dataset,
    *,
    features: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what ``tf.io.parse_example`` takes to parse a dataset's records.

    Numbers come out as the int64 and float32 that an Example has; `tf_dataset` gives them the dtype
    that was written.

    Args:
        data: A path as `shardwriter.open` takes it, or what it returned.
        features: Names of the features to parse; None for all.
        defaults: What absent features are, by name.

    Raises:
        OptionError: Nothing is known of the records' features, or there is none of a name.
    """
    opened = opened_dataset(data)
    num_records = opened.num_source_records
    return schema_spec(opened.features, num_records, names=features, defaults=defaults)


@contextmanager
def naming_damage(data: str | os.PathLike[str] | Dataset) -> Iterator[None]:
    """Name the file and record where TensorFlow fails on damaged data, which it does not.

    ::

        with naming_damage("out/train"):
            model.fit(train)

    Costs nothing until then; then every shard is read until the damage is found.

    Raises:
        DataError: What is wrong, with path, record and offset; TensorFlow's error is its cause.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.FailedPreconditionError) as error:
        try:
            for _ in opened_dataset(data).raw():
                pass
        except DataError as found:
            raise found from error
        raise


# -- parts of the pipeline -------------------------------------------------------------------------


def _rank_and_world(context: Any, rank: int | None, world: int | None) -> tuple[int, int]:
    if context is not None:
        if rank is not None or world is not None:
            raise OptionError("rank and world are given, and an input_context that says them")
        return context.input_pipeline_id, context.num_input_pipelines
    if (rank is None) != (world is None):
        raise OptionError("of rank and world one is given", hint="give both")
    return rank or 0, 1 if world is None else world


def _policy(uneven: Uneven | None, plan: Resampling | None) -> Uneven | None:
    if plan is None:
        return uneven
    if uneven is not None:
        raise OptionError(
            f"uneven={uneven!r} has no meaning with resampling",
            hint="leave it out: ranks have the same number of samples",
        )
    return "pad"  # no record is left out, and the length of an epoch is chosen


def _options(deterministic: bool, is_split: bool) -> Any:
    options = tf.data.Options()
    options.deterministic = deterministic
    if is_split:
        # A strategy that is given this dataset must not split it again.
        policy = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_distribute.auto_shard_policy = policy
    return options


def _shuffle_buffer(files: RecordFiles) -> int:
    return int(np.clip(_SHUFFLE_BYTES // files.mean_bytes, 256, _MAX_SHUFFLE_RECORDS))


def _mixed(seed: int, epoch: int | None) -> int:
    """Return a seed of its own for every epoch, as TensorFlow takes it."""
    numbers = [seed] if epoch is None else [seed, epoch]
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _spare_gpus(hide: bool) -> None:
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if hide:
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError as error:
            raise OptionError(
                f"hide_gpus comes too late: {error}",
                hint="call tf_dataset before anything else of TensorFlow, or "
                'tf.config.set_visible_devices([], "GPU") as the first thing',
            ) from None
