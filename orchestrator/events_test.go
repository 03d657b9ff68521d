package orchestrator_test

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
)

// allButSchedules is a server whose only user may publish everything but the events of schedules.
const allButSchedules = `
jetstream {}
authorization {
    users: [ { user: node, password: p, permissions: { publish: { deny: ["tranche.event.schedule.>"] } } } ]
}`

// addEvents stores events, older than all before, whose payload has so many bytes beside its braces.
func (b *bundle) addEvents(t *testing.T, kind string, n, size int) {
	t.Helper()
	b.Exec(t, `INSERT INTO run_event (id, run_id, generation, kind, payload, at)
		SELECT gen_random_uuid(), gen_random_uuid(), 1, $1, jsonb_build_object('x', repeat('y', $3)),
			(SELECT coalesce(min(at), tranche_now()) - interval '1 s' FROM run_event)
		FROM generate_series(1, $2)`, kind, n, size)
}

const waiting = `SELECT count(*) FROM run_event WHERE kind = $1 AND published_at IS NULL`

// published waits until the events of a kind are, without waiting for the leader.
func (b *bundle) published(t *testing.T, kind string) {
	t.Helper()
	nodetest.Until(t, "events "+kind+" are published", func() bool {
		b.Node.PublishEvents()
		return b.Number(t, waiting, kind) == 0
	})
}

// NATS takes no events of one kind, and others are larger than a message may be. However many these are, and although
// they are the older ones, those of other kinds are published; once the permission is granted, these are as well.
func TestEventsThatAreNotTakenKeepNoOthers(t *testing.T) {
	t.Parallel()
	b := &bundle{&nodetest.Bundle{Pool: testenv.Pool(t)}}
	b.Store = database.New(b.Pool)
	const refused, large = 250, 3
	b.addEvents(t, "completed", 120, 0)
	b.addEvents(t, "paused", large, 1<<20)
	b.addEvents(t, "schedule.missed", refused, 0)
	server := testenv.NATSByConfig(t, allButSchedules)
	b.Node = b.Join(t, b.Store, server.Conn(t, "node", "p", "_INBOX"), nodetest.Config(t)).Node
	b.published(t, "completed")
	if n, m := b.Number(t, waiting, "schedule.missed"), b.Number(t, waiting, "paused"); n != refused || m != large {
		t.Errorf("%d refused and %d large events wait; want %d and %d", n, m, refused, large)
	}
	b.addEvents(t, "completed", 1, 0) // older than the others
	b.published(t, "completed")
	server.Reload(t, strings.Replace(allButSchedules, "schedule.>", "nothing.>", 1))
	b.published(t, "schedule.missed")
	testenv.Same(t, b.Number(t, waiting, "paused"), large, "large events wait")
}
