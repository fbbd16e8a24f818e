"""What is on disk: scans, findings, statistics, split plans and gates; repair."""
