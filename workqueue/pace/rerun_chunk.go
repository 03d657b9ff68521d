package pace

// PacesOfEndpoint reads what operators and nodes have found out about the endpoint; both rows may be missing.
const PacesOfEndpoint = `
SELECT coalesce(p.chunk, 0), CASE WHEN p.chunk_cap_until > clock_timestamp() THEN p.chunk_cap ELSE 0 END,
    coalesce(p.rate, 0), coalesce(e.rate, 0)
FROM endpoint_pace p FULL JOIN endpoint_setting e USING (endpoint) WHERE endpoint = $1`
