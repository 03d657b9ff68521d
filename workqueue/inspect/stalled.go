package inspect

// What a heartbeat says of it. The node tells for how long, since its clock need not be the database's.
const (
	StalledSince = `heartbeat_at - make_interval(secs => (stats -> 'mute' ->> 'seconds')::float8)`
	StalledWhy   = `coalesce(stats -> 'mute' ->> 'why', '')`
)
