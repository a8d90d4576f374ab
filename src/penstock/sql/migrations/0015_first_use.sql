-- 0015_first_use: settings of the whole database, what a sweep locks, and whose a run of a sink is.
--
-- One row, or none as long as all is at its default.
CREATE TABLE penstock.database_settings (
    one                 boolean NOT NULL DEFAULT true,
    create_on_first_use boolean NOT NULL DEFAULT true,
    CONSTRAINT database_settings_pkey PRIMARY KEY (one),
    CONSTRAINT database_settings_is_one_row CHECK (one)
);

-- Has no rows, and never will: whoever sweeps locks it. An advisory lock can be taken by everybody who may log in.
CREATE TABLE penstock.sweep_lock ();

-- Who began a run. Of those that are there already nobody knows.
ALTER TABLE penstock.sink_runs ADD COLUMN owner name;
ALTER TABLE penstock.sink_runs ALTER COLUMN owner SET DEFAULT session_user;
