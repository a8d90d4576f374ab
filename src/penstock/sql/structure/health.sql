-- Who consumes, how it fares, and which groups are held because their handlers fail.
--
-- A row per consumer and per failing group, written in batches of a few seconds: nothing here is on a hot path, so rows
-- are updated in place. The free space in each page keeps that cheap.

-- A consumer is a process that consumes, or more exactly one client of it. It gets its row on first contact.
CREATE TABLE penstock.consumers (
    consumer_id text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    description text,
    metadata    jsonb,
    CONSTRAINT consumers_pkey PRIMARY KEY (consumer_id),
    CONSTRAINT consumers_id_is_valid CHECK (octet_length(consumer_id) BETWEEN 1 AND 255)
);

-- What a consumer said of itself last. Times are in microseconds: `avg_processing_time` and `p99_processing_time` are
-- those of one message. `report_number` is that of the last report, so that one that is repeated counts once.
-- `is_reset`: an operator wants it to count from 0; its next report tells it.
CREATE TABLE penstock.consumer_health (
    consumer_id         text        NOT NULL
        CONSTRAINT consumer_health_consumer REFERENCES penstock.consumers (consumer_id) ON DELETE CASCADE,
    last_seen           timestamptz NOT NULL DEFAULT clock_timestamp(),
    status              text        NOT NULL,
    success_count       bigint      NOT NULL DEFAULT 0,
    error_count         bigint      NOT NULL DEFAULT 0,
    consecutive_errors  bigint      NOT NULL DEFAULT 0,
    avg_processing_time bigint,
    p99_processing_time bigint,
    last_error          text,
    report_number       bigint      NOT NULL DEFAULT 0,
    is_reset            boolean     NOT NULL DEFAULT false,
    metadata            jsonb,
    CONSTRAINT consumer_health_pkey PRIMARY KEY (consumer_id),
    CONSTRAINT consumer_health_status_is_known CHECK (
        status IN ('healthy', 'degraded', 'open', 'half_open', 'gone')
    )
)
WITH (fillfactor = 50);

-- Which groups a consumer handles messages of, and how many errors in a row it had there last. Written when that
-- changes.
CREATE TABLE penstock.group_consumers (
    group_id           integer NOT NULL
        CONSTRAINT group_consumers_group REFERENCES penstock.consumer_groups (group_id) ON DELETE CASCADE,
    consumer_id        text    NOT NULL
        CONSTRAINT group_consumers_consumer REFERENCES penstock.consumers (consumer_id) ON DELETE CASCADE,
    consecutive_errors bigint  NOT NULL,
    CONSTRAINT group_consumers_pkey PRIMARY KEY (group_id, consumer_id)
)
WITH (fillfactor = 50);
CREATE INDEX group_consumers_by_consumer ON penstock.group_consumers (consumer_id);

-- The circuit breaker of a group, across all consumers. A group has a row from its first reported failure on. While the
-- breaker is open the group is held until `open_until`; then one message is handed out as a probe. `opened` is how
-- often it opened without closing in between, `pause` how long it holds the group this time, in seconds.
CREATE TABLE penstock.breakers (
    group_id           integer          NOT NULL
        CONSTRAINT breakers_group REFERENCES penstock.consumer_groups (group_id) ON DELETE CASCADE,
    state              text             NOT NULL DEFAULT 'closed',
    since              timestamptz      NOT NULL,
    consecutive_errors bigint           NOT NULL DEFAULT 0,
    window_began       timestamptz      NOT NULL,
    window_calls       bigint           NOT NULL DEFAULT 0,
    window_errors      bigint           NOT NULL DEFAULT 0,
    opened             integer          NOT NULL DEFAULT 0,
    opened_at          timestamptz,
    open_until         timestamptz,
    pause              double precision,
    reason             text,
    last_error         text,
    CONSTRAINT breakers_pkey PRIMARY KEY (group_id),
    CONSTRAINT breakers_state_is_known CHECK (state IN ('closed', 'open'))
)
WITH (fillfactor = 50);
