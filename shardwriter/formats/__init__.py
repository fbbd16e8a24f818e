"""Byte formats, exact: framing, compression, checksums, small files of others."""
