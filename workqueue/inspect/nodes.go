package inspect

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/workqueue"
)

// nodesFor are the sessions that are alive; for a local function, those that say that they have it, or that have not
// said yet what they have.
const nodesFor = `
SELECT coalesce(array_agg(format('node %s (pid %s)', host, pid) ORDER BY started_at, id), '{}') FROM node_session
WHERE ended_at IS NULL AND expires_at > tranche_now()
    AND ($1 = '' OR stats -> 'locals' IS NULL OR stats -> 'locals' ? $1)`

// NodesFor names the nodes that are alive and do the work of steps with a pace key that is no endpoint's. Every node
// can ask HTTP services and sources; local functions are there only in programs that bring them.
func (s Store) NodesFor(ctx context.Context, key string) (nodes []string, err error) {
	function := ""
	if kind, target := workqueue.TargetKind(key); kind == workqueue.KindLocal {
		function = target
	}
	if err := s.db.Pool.QueryRow(ctx, nodesFor, function).Scan(&nodes); err != nil {
		return nil, fmt.Errorf("look for nodes that do %s: %w", key, err)
	}
	return nodes, nil
}

// What a heartbeat says of it. The node tells for how long, since its clock need not be the database's.
const (
	StalledSince = `heartbeat_at - make_interval(secs => (stats -> 'stalled' ->> 'seconds')::float8)`
	StalledWhy   = `coalesce(stats -> 'stalled' ->> 'why', '')`
	Refused      = `coalesce(stats ->> 'refused', '')`
)
