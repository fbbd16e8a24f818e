"""tf.data pipelines of a dataset: ``from shardwriter.reading.tensorflow import tf_dataset``.

Importing it imports TensorFlow, which the extra ``shardwriter[tensorflow]`` installs.
"""

from __future__ import annotations

from shardwriter.errors import MissingExtra

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        f"reading with tf.data needs TensorFlow: {error}",
        hint='pip install "shardwriter[tensorflow]"',
    ) from error

from shardwriter.reading.record_files import class_mix
from shardwriter.reading.tensorflow.dataset import feature_spec, naming_damage, tf_dataset

__all__ = ["class_mix", "feature_spec", "naming_damage", "tf_dataset"]
