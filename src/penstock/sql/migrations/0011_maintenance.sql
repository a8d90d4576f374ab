-- 0011_maintenance: when all partitions were last looked after, so that the next pass knows what has come since.
--
-- One row, or none before the first pass. `began_at` is when the pass under way began; `looked_at` when the last one began that came to its end.
CREATE TABLE penstock.maintenance (
    one       boolean     NOT NULL DEFAULT true,
    began_at  timestamptz NOT NULL DEFAULT '-infinity',
    looked_at timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT maintenance_pkey PRIMARY KEY (one),
    CONSTRAINT maintenance_is_one_row CHECK (one)
);
