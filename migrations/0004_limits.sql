-- Limits of single keys, and balances of every kind of bucket: a team's own, those on its models,
-- those of its keys. A rate and its burst are set together.
ALTER TABLE keys ADD COLUMN tokens_per_s INTEGER;
ALTER TABLE keys ADD COLUMN burst_tokens INTEGER;
ALTER TABLE keys ADD COLUMN requests_per_s REAL;
ALTER TABLE keys ADD COLUMN burst_requests INTEGER;

CREATE TABLE bucket_balances_of_all (
    team TEXT NOT NULL,
    model TEXT NOT NULL DEFAULT '',
    key_id TEXT NOT NULL DEFAULT '',
    kind TEXT NOT NULL CHECK (kind IN ('tokens', 'requests')),
    balance REAL NOT NULL,
    at_us INTEGER NOT NULL,
    PRIMARY KEY (team, model, key_id, kind)
) STRICT;
INSERT INTO bucket_balances_of_all (team, kind, balance, at_us)
SELECT team, kind, balance, at_us FROM bucket_balances;
DROP TABLE bucket_balances;
ALTER TABLE bucket_balances_of_all RENAME TO bucket_balances;
