-- penstock.payload_json(payload)
--
-- Returns the value of a message in a form that fits into JSON: `payload` if it is JSON itself, `payloadText` if it
-- is any other text, and `payloadBase64` if it is neither. A null value is a null `payload`; the text null, which is
-- also JSON, is in `payloadText`.
--
-- Parameters: payload - the value, or null.
-- Returns: an object with one of the three.
-- Calls: nothing. Tables: none.
CREATE OR REPLACE FUNCTION penstock.payload_json(payload bytea)
RETURNS jsonb
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    said   text;
    parsed jsonb;
BEGIN
    IF payload IS NULL THEN
        RETURN '{"payload": null}';
    END IF;
    said := convert_from(payload, 'UTF8');
    parsed := said::jsonb;
    RETURN CASE WHEN parsed = 'null' THEN jsonb_build_object('payloadText', said)
                ELSE jsonb_build_object('payload', parsed) END;
EXCEPTION WHEN OTHERS THEN
    RETURN CASE
        WHEN said IS NULL THEN jsonb_build_object('payloadBase64', translate(encode(payload, 'base64'), E'\n', ''))
        ELSE jsonb_build_object('payloadText', said)
    END;
END
$$;
