-- penstock.payload_json(payload)
--
-- A message's value as JSON can carry it: `payload` where it is JSON itself, `payloadText` where it is any other text,
-- and `payloadBase64` where it is neither.
--
-- Parameters: payload - the value.
-- Returns: an object with one of the three.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.payload_json(payload bytea)
RETURNS jsonb
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    said text;
BEGIN
    said := convert_from(payload, 'UTF8');
    RETURN jsonb_build_object('payload', said::jsonb);
EXCEPTION WHEN OTHERS THEN
    RETURN CASE
        WHEN said IS NULL THEN jsonb_build_object('payloadBase64', translate(encode(payload, 'base64'), E'\n', ''))
        ELSE jsonb_build_object('payloadText', said)
    END;
END
$$;
