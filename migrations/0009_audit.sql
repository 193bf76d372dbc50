-- What admins did: one row an action, whether it succeeded or not. Never a secret.
CREATE TABLE audit (
    id INTEGER PRIMARY KEY,
    ts_us INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    status INTEGER NOT NULL,
    request_id TEXT NOT NULL
) STRICT;
