package start

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// freePartition finds the partition that has the least in it, and never the one that most runs share. Sizes are those
// of the files, which nobody has to read. Of those that are empty it takes any, so that two loads that begin at once
// seldom meet; when they do, or when none is empty, runs share one, and are deleted row by row until the last of them
// goes.
const freePartition = `
SELECT right(c.relname, 2)::int FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent IN ('work_queue'::regclass, 'work_part'::regclass) AND c.relname !~ '_00$'
GROUP BY 1 ORDER BY coalesce(sum(pg_relation_size(c.oid)), 0), random() LIMIT 1`

// choosePartition gives a large load, of which nothing is written yet, an id that leads to the freest partition.
func (l *loader) choosePartition(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	var free int
	if err := l.store.Pool.QueryRow(ctx, freePartition).Scan(&free); err != nil {
		return fmt.Errorf("look for a free partition: %w", err)
	}
	l.run = workqueue.NewRunIDIn(free)
	return nil
}
