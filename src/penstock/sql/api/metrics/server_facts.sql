-- penstock.server_facts()
--
-- Returns what the owner of a database asks of its server: versions, size of the database and of each queue, dead tuples,
-- connections, transactions that are open for long, locks that are waited for, and when maintenance was last there. Its
-- cost does not depend on how much is stored: sizes of queues are estimated from at most a thousand pages of the log.
-- No text of a query is in it, since that may hold data.
--
-- Parameters: none.
-- Returns: a JSON object. A table that somebody has locked has no size.
-- Calls: policy_clock. Tables: migrations, segments, partitions, queues, maintenance, group_samples, failing_timers
-- (read). PostgreSQL's own views of statistics, locks and sessions have the rest.
-- Granted to: admin.
CREATE OR REPLACE FUNCTION penstock.server_facts()
RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
    pages  float8 := pg_relation_size('penstock.segments') / current_setting('block_size')::float8;
    share  real := least(100, 100 * 1000 / greatest(pages, 1));
    total  bigint := pg_total_relation_size('penstock.segments');
    sizes  jsonb;
    tables jsonb;
BEGIN
    -- Whoever asks for the size of a table waits for who has locked it, and that is just when somebody looks here.
    SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY t.bytes DESC NULLS FIRST, t.name), '[]') INTO tables
    FROM (
        SELECT
            t.relname AS name, CASE WHEN l.relation IS NULL THEN pg_total_relation_size(t.relid) END AS bytes,
            t.n_live_tup AS live_tuples, t.n_dead_tup AS dead_tuples,
            greatest(t.last_vacuum, t.last_autovacuum) AS vacuumed_at,
            greatest(t.last_analyze, t.last_autoanalyze) AS analyzed_at
        FROM pg_stat_all_tables t
        LEFT JOIN (
            SELECT DISTINCT l.relation FROM pg_locks l
            WHERE l.mode = 'AccessExclusiveLock'
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        ) l ON l.relation = t.relid
        WHERE t.schemaname = 'penstock'
    ) t;
    SELECT coalesce(jsonb_agg(jsonb_build_object('queue', s.name, 'bytes', s.bytes) ORDER BY s.bytes DESC, s.name), '[]')
    INTO sizes
    FROM (
        SELECT q.name, round(total * sum(w.weight) / sum(sum(w.weight)) OVER ())::bigint AS bytes
        FROM (
            -- A row takes some bytes besides what it holds.
            SELECT s.partition_id, sum(s.bytes + 100) AS weight
            FROM penstock.segments s TABLESAMPLE SYSTEM (share)
            WHERE s.partition_id > 0
            GROUP BY s.partition_id
        ) w
        JOIN penstock.partitions p ON p.partition_id = w.partition_id
        JOIN penstock.queues q ON q.queue_id = p.queue_id
        GROUP BY q.name
        ORDER BY 2 DESC
        LIMIT 1000
    ) s;
    RETURN jsonb_build_object(
        'now', penstock.policy_clock(),
        'server_version', current_setting('server_version'),
        'schema_version', (SELECT max(m.number) FROM penstock.migrations m),
        'database', current_database(),
        'started_at', pg_postmaster_start_time(),
        'standby', pg_is_in_recovery(),
        'database_bytes', pg_database_size(current_database()),
        'queues', sizes,
        'estimated', share < 100,
        'tables', tables,
        'max_connections', current_setting('max_connections')::integer,
        'connections', (
            SELECT coalesce(jsonb_object_agg(a.state, a.sessions), '{}')
            FROM (
                SELECT coalesce(a.state, 'unknown') AS state, count(*) AS sessions
                FROM pg_stat_activity a
                WHERE a.backend_type = 'client backend' OR a.backend_type IS NULL
                GROUP BY 1
            ) a
        ),
        'transactions', (
            SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY t.since), '[]')
            FROM (
                SELECT
                    a.pid, NULL::text AS prepared, a.usename::text AS "user", a.application_name AS application,
                    a.state, a.xact_start AS since
                FROM pg_stat_activity a
                WHERE a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
                  AND a.xact_start < clock_timestamp() - interval '5 seconds'
                UNION ALL
                SELECT NULL, x.gid, x.owner::text, NULL, 'prepared', x.prepared
                FROM pg_prepared_xacts x
                WHERE x.database = current_database()
                ORDER BY 6
                LIMIT 20
            ) t
        ),
        'lock_waits', (
            SELECT coalesce(jsonb_agg(to_jsonb(w) ORDER BY w.since), '[]')
            FROM (
                SELECT
                    l.pid, l.locktype AS kind, l.mode, CASE
                        WHEN l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                        THEN l.relation::regclass::text
                    END AS "table",
                    pg_blocking_pids(l.pid) AS blocked_by, l.waitstart AS since
                FROM pg_locks l
                WHERE NOT l.granted
                ORDER BY l.waitstart
                LIMIT 20
            ) w
        ),
        'waiting_for_locks', (SELECT count(*) FROM pg_locks l WHERE NOT l.granted),
        'maintained_at', (SELECT nullif(m.looked_at, '-infinity') FROM penstock.maintenance m),
        'sampled_at', (SELECT max(s.sampled_at) FROM penstock.group_samples s),
        'failing_timers', (
            SELECT coalesce(jsonb_object_agg(f.kind, f.timers), '{}')
            FROM (SELECT f.kind, count(*) AS timers FROM penstock.failing_timers f GROUP BY f.kind) f
        )
    );
END
$$;
