"""Bytes that others define: TFRecord frames, CRC-32C, Examples, image and WAV headers, events."""
