-- 0017_late_rows: how many rows of a flow came behind its watermark, so that Spark dropped them.

ALTER TABLE penstock.flow_states ADD COLUMN late_rows bigint NOT NULL DEFAULT 0;
