-- What each pool's slots were used for, by the hour, in millionths of a second: the decode side of a
-- split pool is a pool of its own.

CREATE TABLE capacity_hours (
    hour INTEGER NOT NULL,
    pool TEXT NOT NULL,
    slot_us INTEGER NOT NULL CHECK (slot_us >= 0),
    interactive_us INTEGER NOT NULL CHECK (interactive_us >= 0),
    batch_us INTEGER NOT NULL CHECK (batch_us >= 0),
    worker_us INTEGER NOT NULL CHECK (worker_us >= 0),
    busy_us INTEGER NOT NULL CHECK (busy_us >= 0),
    PRIMARY KEY (hour, pool)
) STRICT, WITHOUT ROWID;
