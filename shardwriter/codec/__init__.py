"""``tf.train.Example`` and ``SequenceExample``, from values to the wire and back."""
