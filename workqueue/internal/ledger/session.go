package ledger

const EndSession = `
UPDATE node_session SET ended_at = clock_timestamp() WHERE id = $1 AND ended_at IS NULL`

// SessionLive is a condition on a session id: it has neither ended nor expired.
const SessionLive = `
SELECT 1 FROM node_session WHERE id = $1 AND ended_at IS NULL AND expires_at > clock_timestamp()`
