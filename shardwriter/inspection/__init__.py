"""What ``shard-stats`` knows: scans of files, what they add up to, and what is judged of a set.

::

    files --scan--> FileScan, ... --judge--> SetReport, ... --> Report --> one JSON document

Everything that a person or a machine is shown is made of that document: the tables, the page, the
gates, the comparison with an earlier one.
"""
