-- API keys. Teams themselves live in inferd.toml, so `team` has nothing to refer to.
-- A key keeps its id when its secret is rotated: the ledger stays one series per key.
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
    previous_until_us INTEGER,
    CHECK ((previous_hash IS NULL) = (previous_until_us IS NULL))
) STRICT;
