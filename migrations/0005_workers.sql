-- Engines that run or may run: one row a life, from before its process is started until it has ended.
-- `pid` and `start_ticks` are null until the process exists; its mark finds it in any case.
CREATE TABLE workers (
    mark TEXT PRIMARY KEY,
    worker TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid INTEGER,
    start_ticks INTEGER,
    port INTEGER NOT NULL,
    api_key TEXT NOT NULL,
    spec_hash TEXT NOT NULL,
    program_hash TEXT NOT NULL,
    devices TEXT NOT NULL,
    was_ready INTEGER NOT NULL CHECK (was_ready IN (0, 1)),
    started_us INTEGER NOT NULL,
    CHECK ((pid IS NULL) = (start_ticks IS NULL))
) STRICT;
