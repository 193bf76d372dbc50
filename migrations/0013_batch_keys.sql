-- A batch's `Idempotency-Key` is kept as those of files are. What a batch was asked with is told by
-- another digest from now on: a key from before is refused, rather than making a second batch.
INSERT OR IGNORE INTO idempotency_keys (team, path, key, digest, object_id, created_us)
SELECT team, '/v1/batches', idempotency_key, request_hash, id, created_us
FROM batches
WHERE idempotency_key IS NOT NULL;

DROP INDEX batches_by_idempotency_key;
ALTER TABLE batches DROP COLUMN idempotency_key;
ALTER TABLE batches DROP COLUMN request_hash;
