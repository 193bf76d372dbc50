"""Engine processes: their life, their calls, how many of them. Knows no queues."""
