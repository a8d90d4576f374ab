-- 0019_isolated_maintenance: what maintenance could not do is remembered as timers that fail are.
--
-- Of kind `maintenance`, partition_id says which partition it is, 0 what is not of one partition. A row goes when
-- maintenance gets through there again.
ALTER TABLE penstock.failing_timers
    DROP CONSTRAINT failing_timers_kind_is_known,
    ADD CONSTRAINT failing_timers_kind_is_known CHECK (
        kind IN ('journal', 'claim', 'doorbell', 'enrolment', 'scheduled', 'sweep', 'maintenance')
    );
