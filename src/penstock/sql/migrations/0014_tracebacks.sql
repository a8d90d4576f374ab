-- 0014_tracebacks: where in the handler a message failed for the last time, kept with its dead letter.
ALTER TABLE penstock.dead_letters ADD COLUMN traceback text;
-- It returns one column more, which a replacement must not.
DROP FUNCTION IF EXISTS penstock.list_dead_letters(text, text, text, bigint, integer);
