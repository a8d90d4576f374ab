-- 0003_lighter: less work per push and per sweep.

-- PostgreSQL prepares a CHECK anew for every insert, which cost a sixth of a push. The functions that write segments
-- refuse what is wrong, and `verify` looks.
ALTER TABLE penstock.segments DROP CONSTRAINT segments_shape_is_valid;

-- Sweep says where the next one may begin, and is told.
DROP FUNCTION IF EXISTS penstock.sweep(integer);
