package pace

const DrainPaceCalls = `UPDATE endpoint_pace SET call_tokens = $2, call_tokens_at = $3 WHERE endpoint = $1`
