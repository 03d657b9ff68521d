// Package health reads what may want somebody's attention. It judges nothing.
package health

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Store is the database for who watches over the whole. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Facts is what the database tells of the system's health, as of about one moment. Lists are cut to a few, the
// worst or oldest first; what they count is counted whole where that is cheap.
type Facts struct {
	At       time.Time // the database's clock
	Failed   []FailedRun
	Held     []HeldRun
	Overdue  []LateSeal
	Waiting  []WaitingRun
	IdleCut  bool // there may be more of them
	Stale    []StaleSlices
	Untaken  []UntakenRequests
	Working  []WorkingEndpoint
	Open     []OpenBreaker
	Slow     []pace.SlowEndpoint
	Letters  []LetterCount
	Strays   []StrayCount
	Events   EventsWaiting
	Leader   *inspect.LeaderView // nil: nobody has ever led
	Nodes    []NodeHealth
	Tokens   []EndingToken
	Database DatabaseLoad
	Kept     []KeptCondition
	Marks    []Mark
	Streams  *session.StreamTrouble // nil: they are as they are set, or no node has been at it

	SchedulesFailed []FailedSchedule
	SchedulesStuck  []StuckSchedule
	SchedulesLate   []LateRun

	CollectorsParked   []ParkedOps
	CollectorsLate     []LateCollector
	CollectorsRefusing []RefusingCollector
	FlushesHung        []HungFlush

	AlertsFailing []FailingAlert

	Gaps   []NotedGap
	Faults []session.StreamFault
}

// Limits says from when on something counts.
type Limits struct {
	Waiting time.Duration // a run that has work and gets none of it done
	Failed  time.Duration // how far back failed items are told of
	Strays  time.Duration // the same of quarantined messages
	Stale   time.Duration // past a deadline
	Dead    time.Duration // how long a node that died is told of
	Token   time.Duration // before the end of a token
	Listed  int           // how many each list has at the most; zero: DefaultListed
}

const (
	// DefaultListed is how many each list of Facts has.
	DefaultListed = 20
	// maxIdle bounds, whatever Limits say, of how many idle runs it is read since when they are.
	maxIdle = 1000
)

// Health reads what the database tells of the system's health. It locks nothing and reads no planes: blocks with ready
// items, and live slices, are found by their partial indexes, whatever else there is.
func (s Store) Health(ctx context.Context, l Limits) (*Facts, error) {
	l.Listed = cmp.Or(l.Listed, DefaultListed)
	f := &Facts{}
	b := &pgx.Batch{}
	f.queueRuns(b, l)
	f.queueWork(b, l)
	f.queueLeftovers(b, l)
	f.queueNodes(b, l)
	f.queueDatabase(b, l)
	f.queueStreams(b)
	f.queueSchedules(b, l)
	f.queueCollectors(b, l)
	f.queueAlerts(b, l)
	queueRows(b, &f.Gaps, healthGaps, l.Listed, GapTold, moveTold)
	queueRows(b, &f.Faults, session.StreamFaults)
	if err := s.db.Pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read the system's health: %w", err)
	}
	return f, nil
}

// queueRows adds a query whose rows become a list.
func queueRows[T any](b *pgx.Batch, into *[]T, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
}
