package collector

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// NodeFlushes is how many keys a node flushes at once, of all collectors.
	NodeFlushes = 128
	// keptFlushes is how many of them are kept for collectors that have few under way: a service that is silent has all
	// that its collectors may take, each for as long as a flush may take.
	keptFlushes = NodeFlushes / 4
	// fewFlushes is up to how many keys a collector may have under way that uses what is kept.
	fewFlushes = 4
)

// FlushRoom is how many keys of a collector a node may take to flush that flushes so many keys, and so many of this
// collector among them. It is 0 or less when it may take none.
func FlushRoom(all, own int) int {
	return max(NodeFlushes-keptFlushes-all, min(NodeFlushes-all, fewFlushes-own))
}

// nodesFlushing reads which collectors have keys under way on each node that lives, by collector_key_flushing.
const nodesFlushing = `
SELECT s.id, coalesce(c.name, ''), count(k.flush)
FROM node_session s LEFT JOIN collector_key k ON k.flush IS NOT NULL AND k.session_id = s.id
LEFT JOIN collector c ON c.id = k.collector
WHERE s.ended_at IS NULL AND s.expires_at > tranche_now()
GROUP BY s.id, c.name`

// nodeFlushing is how many keys of a collector a node flushes; one without a name stands for a node that flushes none.
type nodeFlushing struct {
	Node      workqueue.SessionID
	Collector string
	Keys      int
}

func (s Store) nodesFlushing(ctx context.Context) ([]nodeFlushing, error) {
	return pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[nodeFlushing], nodesFlushing)
}

// crowded says on how many nodes there is no room for another key of a collector, when that is so on all, and which
// collector has the most keys under way there.
func crowded(flushing []nodeFlushing, collector string) (nodes int, most nodeFlushing) {
	all, own, each := map[workqueue.SessionID]int{}, map[workqueue.SessionID]int{}, map[string]int{}
	for _, f := range flushing {
		all[f.Node] += f.Keys
		each[f.Collector] += f.Keys
		if f.Collector == collector {
			own[f.Node] = f.Keys
		}
		if n := each[f.Collector]; n > most.Keys {
			most.Collector, most.Keys = f.Collector, n
		}
	}
	for node, keys := range all {
		if FlushRoom(keys, own[node]) > 0 {
			return 0, most
		}
	}
	return len(all), most
}
