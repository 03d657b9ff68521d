package plane

// AskedAt is an SQL expression on work_slice: when its request was sent, null if it was not. A reply can be recorded
// before the node has noted that it had sent the request.
const AskedAt = `coalesce(sent_at, CASE WHEN state = 'recorded' THEN greatest(created_at, not_before) END)`
