-- Rules that redrive dead letters by themselves.

-- Dead letters that match a rule are redriven by themselves, up to `max_redrives` times for each message: the wait
-- before the first is `backoff` seconds, and before each further one `backoff_factor` times as long. Null matches all.
CREATE TABLE penstock.dead_letter_rules (
    rule_id        bigint           GENERATED ALWAYS AS IDENTITY,
    name           text             NOT NULL,
    queue_name     text,
    group_name     text,
    reason         text,
    error_text     text,
    backoff        double precision NOT NULL,
    backoff_factor double precision NOT NULL,
    max_redrives   integer          NOT NULL,
    enabled        boolean          NOT NULL DEFAULT true,
    created_at     timestamptz      NOT NULL DEFAULT clock_timestamp(),
    redriven       bigint           NOT NULL DEFAULT 0,
    last_redriven  timestamptz,
    looked_to      bigint           NOT NULL DEFAULT 0,
    CONSTRAINT dead_letter_rules_pkey PRIMARY KEY (rule_id),
    CONSTRAINT dead_letter_rules_name_is_unique UNIQUE (name),
    CONSTRAINT dead_letter_rules_name_is_valid CHECK (penstock.name_problem(name) IS NULL)
);
