-- 0003_lighter: less work per push and per sweep; shared groups count what retention took from them.

-- PostgreSQL prepares a CHECK anew for every insert, which cost a sixth of a push. The functions that write segments
-- refuse what is wrong, and `verify` looks.
ALTER TABLE penstock.segments DROP CONSTRAINT segments_shape_is_valid;

-- What retention dropped of a range that a shared group had set aside. The journal counts what its frontier passed.
CREATE TABLE penstock.skips (
    group_id     integer NOT NULL,
    partition_id bigint  NOT NULL,
    lo           bigint  NOT NULL,
    hi           bigint  NOT NULL,
    CONSTRAINT skips_pkey PRIMARY KEY (group_id, partition_id, lo),
    CONSTRAINT skips_range_is_not_empty CHECK (lo < hi)
);
