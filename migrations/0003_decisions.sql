-- What a team has left in its buckets, so that a restart neither refills nor empties them.
CREATE TABLE bucket_balances (
    team TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('tokens', 'requests')),
    balance REAL NOT NULL,
    at_us INTEGER NOT NULL,
    PRIMARY KEY (team, kind)
) STRICT;

-- Why a request went where it went. Null where it was never placed, or nothing was predicted.
ALTER TABLE requests ADD COLUMN predicted_ttft_s REAL;
ALTER TABLE requests ADD COLUMN hit_tokens INTEGER;
ALTER TABLE requests ADD COLUMN fair_tag REAL;
ALTER TABLE requests ADD COLUMN candidates INTEGER;
