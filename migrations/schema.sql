-- Generated: the schema after the last migration. Never edited by hand; made with
-- python -c 'from inferd.storage import migrate; migrate.write_schema()'
PRAGMA user_version = 14;

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    team TEXT NOT NULL,
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    models TEXT,
    created_us INTEGER NOT NULL,
    expires_us INTEGER,
    revoked_us INTEGER,
    rotated_us INTEGER,
    previous_hash BLOB UNIQUE CHECK (length(previous_hash) = 32),
    previous_until_us INTEGER, tokens_per_s INTEGER, burst_tokens INTEGER, requests_per_s REAL, burst_requests INTEGER,
    CHECK ((previous_hash IS NULL) = (previous_until_us IS NULL))
) STRICT;

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
, predicted_ttft_s REAL, hit_tokens INTEGER, fair_tag REAL, candidates INTEGER, cost_pico INTEGER NOT NULL DEFAULT 0 CHECK (cost_pico >= 0), choices INTEGER NOT NULL DEFAULT 1 CHECK (choices >= 1), prefill_worker TEXT) STRICT;

CREATE INDEX requests_by_time ON requests (ts_us);

CREATE INDEX requests_by_team ON requests (team, ts_us);

CREATE TABLE "bucket_balances" (
    team TEXT NOT NULL,
    model TEXT NOT NULL DEFAULT '',
    key_id TEXT NOT NULL DEFAULT '',
    kind TEXT NOT NULL CHECK (kind IN ('tokens', 'requests')),
    balance REAL NOT NULL,
    at_us INTEGER NOT NULL,
    PRIMARY KEY (team, model, key_id, kind)
) STRICT;

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

CREATE INDEX requests_by_response ON requests (response_id) WHERE response_id IS NOT NULL;

CREATE TABLE unbilled_attempts (
    request_id TEXT NOT NULL,
    ts_us INTEGER NOT NULL,
    worker TEXT NOT NULL,
    reason TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    estimated INTEGER NOT NULL CHECK (estimated IN (0, 1)),
    choices INTEGER NOT NULL
) STRICT;

CREATE INDEX unbilled_attempts_by_time ON unbilled_attempts (ts_us);

CREATE INDEX unbilled_attempts_by_request ON unbilled_attempts (request_id);

CREATE TABLE usage_hours (
    hour INTEGER NOT NULL,
    team TEXT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    version TEXT NOT NULL,
    priority TEXT NOT NULL,
    outcome TEXT NOT NULL,
    requests INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    estimated_requests INTEGER NOT NULL,
    cost_pico INTEGER NOT NULL,
    PRIMARY KEY (hour, team, key_id, model, version, priority, outcome)
) STRICT, WITHOUT ROWID;

CREATE TABLE rolled_up (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    request_id TEXT NOT NULL
) STRICT;

CREATE TABLE files (
    id TEXT PRIMARY KEY,
    team TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    blobs TEXT NOT NULL CHECK (json_valid(blobs)),
    created_us INTEGER NOT NULL,
    expires_us INTEGER
) STRICT;

CREATE INDEX files_by_team ON files (team, id);

CREATE INDEX files_by_expiry ON files (expires_us) WHERE expires_us IS NOT NULL;

CREATE TABLE uploads (
    id TEXT PRIMARY KEY,
    team TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL CHECK (bytes > 0),
    created_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    file_life_s INTEGER,
    status TEXT NOT NULL CHECK (status IN ('pending', 'completed', 'cancelled', 'expired')),
    file_id TEXT
) STRICT;

CREATE INDEX uploads_by_expiry ON uploads (expires_us);

CREATE TABLE upload_parts (
    id TEXT PRIMARY KEY,
    upload_id TEXT NOT NULL REFERENCES uploads (id) ON DELETE CASCADE,
    bytes INTEGER NOT NULL CHECK (bytes > 0),
    created_us INTEGER NOT NULL
) STRICT;

CREATE INDEX upload_parts_by_upload ON upload_parts (upload_id);

CREATE TABLE store_owner (
    id TEXT PRIMARY KEY
) STRICT;

CREATE TABLE audit (
    id INTEGER PRIMARY KEY,
    ts_us INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    status INTEGER NOT NULL,
    request_id TEXT NOT NULL
) STRICT;

CREATE TABLE idempotency_keys (
    team TEXT NOT NULL,
    path TEXT NOT NULL,
    key TEXT NOT NULL,
    digest TEXT NOT NULL,
    object_id TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    PRIMARY KEY (team, path, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_us);

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

CREATE TABLE batch_lines (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    line INTEGER NOT NULL,
    failed INTEGER NOT NULL CHECK (failed IN (0, 1)),
    spool_end INTEGER NOT NULL,
    request_id TEXT,
    PRIMARY KEY (batch_id, line)
) STRICT, WITHOUT ROWID;

CREATE TABLE quarantine (
    gpu TEXT PRIMARY KEY,
    reason TEXT NOT NULL,
    since_us INTEGER NOT NULL
) STRICT;

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
