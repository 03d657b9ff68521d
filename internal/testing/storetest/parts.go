package storetest

// PutPart puts parts: $1 run, $2 step, $3 generation, $4 what results begin with, $5 content type, $6 the code of an
// error instead, $7 items.
const PutPart = `
INSERT INTO work_part (run_id, slice_id, ordinal, generation, step, result, content_type, error_code, error_message)
SELECT $1, gen_random_uuid(), i, $3, $2, CASE WHEN $6::text IS NULL THEN convert_to($4 || i, 'UTF8') END, $5, $6, ''
FROM unnest($7::integer[]) AS i`
