-- 0013_failures: who pays for a failure in a shared group, and since when a claim is held.

-- Whether a claim was handed out with one message: then that one is known to be what failed.
ALTER TABLE penstock.claims ADD COLUMN alone boolean NOT NULL DEFAULT false;

-- When a claim was handed out, in the rows that renew it or acknowledge a part of it: the sweep trims the first one.
ALTER TABLE penstock.journal ADD COLUMN claimed_at timestamptz;
