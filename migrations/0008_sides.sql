-- A request on a split pool has two workers: who computed its prompt stands apart.
ALTER TABLE requests ADD COLUMN prefill_worker TEXT;
