-- The ledger: one row per request, written once when the request is settled.
CREATE TABLE requests (
    request_id TEXT PRIMARY KEY,
    response_id TEXT,
    ts_us INTEGER NOT NULL,
    team TEXT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    version TEXT NOT NULL,
    pool TEXT NOT NULL,
    worker TEXT,
    priority TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    stream INTEGER NOT NULL CHECK (stream IN (0, 1)),
    prompt_tokens INTEGER NOT NULL CHECK (prompt_tokens >= 0),
    cached_tokens INTEGER NOT NULL CHECK (cached_tokens >= 0),
    completion_tokens INTEGER NOT NULL CHECK (completion_tokens >= 0),
    reasoning_tokens INTEGER NOT NULL CHECK (reasoning_tokens >= 0),
    estimated INTEGER NOT NULL CHECK (estimated IN (0, 1)),
    queue_wait_s REAL NOT NULL,
    ttft_s REAL,
    tpot_s REAL,
    duration_s REAL NOT NULL,
    placement_reason TEXT,
    attempts INTEGER NOT NULL CHECK (attempts >= 0),
    outcome TEXT NOT NULL,
    error_code TEXT
) STRICT;

CREATE INDEX requests_by_time ON requests (ts_us);
CREATE INDEX requests_by_team ON requests (team, ts_us);
