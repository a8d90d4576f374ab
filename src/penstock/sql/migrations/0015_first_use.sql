-- 0015_first_use: settings of the whole database, and what a sweep locks.
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
