-- Files that teams have uploaded and that batches have written. Their bytes are in the object store,
-- in blobs: `blobs` is a JSON array of [blob id, bytes], in order.
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

-- Files that arrive in parts. A part's id is that of its blob; the row goes when its upload ends.
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

-- Names our objects in a store that others may share: what is swept there is surely ours.
CREATE TABLE store_owner (
    id TEXT PRIMARY KEY
) STRICT;

INSERT INTO store_owner (id) VALUES (lower(hex(randomblob(8))));
