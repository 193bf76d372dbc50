-- GPUs that no engine is given, whatever process asks: only a person gives them back.
CREATE TABLE quarantine (
    gpu TEXT PRIMARY KEY,
    reason TEXT NOT NULL,
    since_us INTEGER NOT NULL
) STRICT;
