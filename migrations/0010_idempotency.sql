-- What the Idempotency-Key of a team has made on a path, so that the same request makes no other one.
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
