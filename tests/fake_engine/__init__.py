"""A stand-in for one SGLang 0.5.23 server: a real process that speaks its HTTP, without a model.

It replaces GPUs, scale and faults in tests, never the real engine: the contract tests run the same
assertions on both, and the byte tests hold it to recorded responses.
"""
