"""Bytes from a worker to a client: HTTP on httptools, and the frames inside it."""
