"""Batches: lines of a file, served in the gaps of the day, each exactly once."""
