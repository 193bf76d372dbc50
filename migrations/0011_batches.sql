-- Batches. `batch_lines` holds the lines that are done: each has one result in a spool file of its
-- batch, which ends at `spool_end`, and one row in the ledger, written in the same transaction.
-- `output_bytes` and `error_bytes` are how much of the spools counts.
CREATE TABLE batches (
    id TEXT PRIMARY KEY,
    team TEXT NOT NULL,
    key_id TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT,
    output_expires_s INTEGER,
    idempotency_key TEXT,
    request_hash TEXT NOT NULL,
    status TEXT NOT NULL,
    ending TEXT,
    errors TEXT,
    output_file_id TEXT,
    error_file_id TEXT,
    created_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    in_progress_us INTEGER,
    finalizing_us INTEGER,
    completed_us INTEGER,
    failed_us INTEGER,
    expired_us INTEGER,
    cancelling_us INTEGER,
    cancelled_us INTEGER,
    input_bytes INTEGER NOT NULL DEFAULT 0,
    prompt_tokens_estimated INTEGER NOT NULL DEFAULT 0,
    output_tokens_estimated INTEGER NOT NULL DEFAULT 0,
    estimated_end_us INTEGER,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    cost_pico INTEGER NOT NULL DEFAULT 0,
    output_bytes INTEGER NOT NULL DEFAULT 0,
    error_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX batches_by_team ON batches (team, created_us);
CREATE UNIQUE INDEX batches_by_idempotency_key ON batches (team, idempotency_key)
WHERE idempotency_key IS NOT NULL;

CREATE TABLE batch_lines (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    line INTEGER NOT NULL,
    failed INTEGER NOT NULL CHECK (failed IN (0, 1)),
    spool_end INTEGER NOT NULL,
    request_id TEXT,
    PRIMARY KEY (batch_id, line)
) STRICT, WITHOUT ROWID;
