-- What a request cost, at the prices of its settlement, in 1e-12 of the currency: always exact.
-- `choices`: an engine counts the prompt of several choices more than once.
ALTER TABLE requests ADD COLUMN cost_pico INTEGER NOT NULL DEFAULT 0 CHECK (cost_pico >= 0);
ALTER TABLE requests ADD COLUMN choices INTEGER NOT NULL DEFAULT 1 CHECK (choices >= 1);

CREATE INDEX requests_by_response ON requests (response_id) WHERE response_id IS NOT NULL;

-- What an engine computed and nobody pays for: attempts that failed, were preempted or placed again.
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

-- Sums of the ledger by the hour, which outlive its rows. `hour`: hours since 1970, UTC.
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

-- The last row of the ledger that is in usage_hours: those after it are summed where they are asked
-- for. By its id, for a VACUUM may change the numbers of rows, though not their order.
CREATE TABLE rolled_up (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    request_id TEXT NOT NULL
) STRICT;
