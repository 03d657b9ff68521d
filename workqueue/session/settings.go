package session

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Bounds of the streams' settings.
const (
	MinStreamBytes = 64 << 10
	// Not waits: how long events may stay in their stream.
	MinEventAge = time.Hour
	MaxEventAge = 10 * 366 * 24 * time.Hour
)

// StreamValues are settings of JetStream streams. Zero is the default: three replicas in a cluster, else one; sizes
// and age of the leader's version.
type StreamValues struct {
	Replicas   int           `json:"replicas"`
	WorkBytes  int64         `json:"work_bytes"`
	ReplyBytes int64         `json:"reply_bytes"`
	StageBytes int64         `json:"stage_bytes"`
	FlowBytes  int64         `json:"flow_bytes"`
	EventBytes int64         `json:"event_bytes"`
	DeadBytes  int64         `json:"dead_bytes"`
	EventAge   time.Duration `json:"event_age"`
}

func (v *StreamValues) sizes() map[string]int64 {
	return map[string]int64{"work_bytes": v.WorkBytes, "reply_bytes": v.ReplyBytes, "stage_bytes": v.StageBytes,
		"flow_bytes": v.FlowBytes, "event_bytes": v.EventBytes, "dead_bytes": v.DeadBytes}
}

// Validate returns a [workqueue.SettingError] for an invalid value.
func (v *StreamValues) Validate() error {
	if !slices.Contains([]int{0, 1, 3, 5}, v.Replicas) {
		return workqueue.BadSetting("replicas is %d; it must be 1, 3 or 5, or auto (0): three in a cluster, else one",
			v.Replicas)
	}
	for name, n := range v.sizes() {
		if n != 0 && n < MinStreamBytes {
			return workqueue.BadSetting("%s is %d; the least is %d (64 KiB), and 0 is the default", name, n, MinStreamBytes)
		}
	}
	if v.EventAge != 0 && (v.EventAge < MinEventAge || v.EventAge > MaxEventAge) {
		return workqueue.BadSetting("event_age is %s; it must be %s to %s, or 0 for the default", v.EventAge, MinEventAge,
			MaxEventAge)
	}
	return nil
}

// Against describes how given values differ from others; zero values do not count.
func (v *StreamValues) Against(other *StreamValues) (differs []string) {
	mine, theirs, none := v.named(), other.named(), (&StreamValues{}).named()
	for name, value := range mine {
		if value != none[name] && value != theirs[name] {
			differs = append(differs, fmt.Sprintf("%s %v instead of %v", name, value, theirs[name]))
		}
	}
	slices.Sort(differs)
	return differs
}

func (v *StreamValues) named() map[string]any {
	all := map[string]any{"replicas": any("auto"), "event_age": v.EventAge.String()}
	if v.Replicas != 0 {
		all["replicas"] = v.Replicas
	}
	for name, n := range v.sizes() {
		all[name] = n
	}
	return all
}

// StreamSettings is the settings of the streams, and the state of applying them.
type StreamSettings struct {
	StreamValues

	Revision  int64 // increases with each change
	ChangedBy string
	ChangedAt time.Time

	Applied         *StreamValues // last applied to the streams; nil: none
	AppliedRevision int64
	AppliedAt       *time.Time

	Trouble string     // why the values could not be applied; empty: no error is known
	Since   *time.Time // start of that
	Tries   int        // since then
	NextTry *time.Time

	Installation uuid.UUID // the database's lineage: the owner of the streams
}

const (
	streamFields = `replicas, work_bytes, reply_bytes, stage_bytes, flow_bytes, event_bytes, dead_bytes, event_age,
    revision, changed_by, changed_at, applied, applied_rev, applied_at, last_error, since, tries, next_try,
    (SELECT lineage FROM database_mark WHERE name = 'mark')`

	readStreamSettings = `SELECT ` + streamFields + ` FROM stream_setting WHERE name = 'streams'`

	// firstStreamSettings returns no row if another node was first.
	firstStreamSettings = `
INSERT INTO stream_setting (name, replicas, work_bytes, reply_bytes, stage_bytes, flow_bytes, event_bytes, dead_bytes,
    event_age, changed_by)
VALUES ('streams', $1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (name) DO NOTHING
RETURNING ` + streamFields

	unsetStreamSettings = `
DELETE FROM stream_setting WHERE name = 'streams' AND applied IS NULL AND changed_by = $1
RETURNING ` + streamFields

	lockStreamSettings = readStreamSettings + ` FOR NO KEY UPDATE`

	changeStreamSettings = `
UPDATE stream_setting
SET replicas = $1, work_bytes = $2, reply_bytes = $3, stage_bytes = $4, flow_bytes = $5, event_bytes = $6,
    dead_bytes = $7, event_age = $8, changed_by = $9, changed_at = tranche_now(), revision = revision + 1,
    last_error = '', since = NULL, tries = 0, next_try = NULL
WHERE name = 'streams'
RETURNING ` + streamFields

	// streamsApplied does nothing if the settings changed meanwhile.
	streamsApplied = `
UPDATE stream_setting
SET applied = $2, applied_rev = $1, applied_at = tranche_now(), last_error = '', since = NULL, tries = 0,
    next_try = NULL
WHERE name = 'streams' AND revision = $1`

	streamsRefused = `
UPDATE stream_setting
SET last_error = $2, since = coalesce(since, tranche_now()), tries = tries + 1,
    next_try = tranche_now() + $3::interval
WHERE name = 'streams' AND revision = $1`
)

func (v *StreamValues) args(actor string) []any {
	return []any{v.Replicas, v.WorkBytes, v.ReplyBytes, v.StageBytes, v.FlowBytes, v.EventBytes, v.DeadBytes, v.EventAge,
		pg.Plain(actor)}
}

func scanStreamSettings(rows pgx.Rows, err error) (s StreamSettings, _ error) {
	if err != nil {
		return s, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[StreamSettings])
}

// StreamSettings returns the settings of the streams. Without any, it saves first: the first node decides.
func (s Store) StreamSettings(ctx context.Context, first StreamValues) (set StreamSettings, err error) {
	if set, err = s.StreamsSet(ctx); err != nil || set.Revision > 0 {
		return set, err
	}
	set, err = s.setFirst(ctx, first)
	return set, pg.Wrap(err, "set the streams for the first time")
}

// StreamsSet returns the settings of the streams, or the zero value if no node has ever started.
func (s Store) StreamsSet(ctx context.Context) (set StreamSettings, err error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	set, err = scanStreamSettings(s.db.Pool.Query(ctx, readStreamSettings))
	return set, pg.Wrap(pg.NoRow(err, nil), "read the settings of the streams")
}

func (s Store) setFirst(ctx context.Context, first StreamValues) (set StreamSettings, err error) {
	if err := first.Validate(); err != nil {
		return set, err
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		set, err = scanStreamSettings(tx.Query(ctx, firstStreamSettings, first.args(workqueue.Engine)...))
		if errors.Is(err, pgx.ErrNoRows) { // its row may be newer than this transaction's first read
			set, err = scanStreamSettings(tx.Query(ctx, readStreamSettings))
			return err
		}
		if err != nil || first == (StreamValues{}) { // no setting was given
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: workqueue.Engine, Name: "streams_set", Subject: "streams",
			After: first.named()})
	})
	return set, err
}

// UnsetStreams deletes the first settings, with an audit entry, if they were never applied: a first start whose
// settings fail gives way to one with others. It reports whether it did.
func (s Store) UnsetStreams(ctx context.Context) (taken bool, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		set, err := scanStreamSettings(tx.Query(ctx, unsetStreamSettings, workqueue.Engine))
		if taken = err == nil; !taken {
			return pg.NoRow(err, nil)
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: workqueue.Engine, Name: "streams_unset", Subject: "streams",
			Before: set.named()})
	})
	return taken, pg.Wrap(err, "take the first settings of the streams back")
}

// StreamChanges is changes of [StreamValues], by the same names; nil leaves one unchanged, zero resets it to the
// default.
type StreamChanges struct {
	Replicas   *int                `json:"replicas,omitempty" enum:"0,1,3,5" doc:"copies of each stream; 0: auto, three in a cluster, else one"`
	WorkBytes  *int64              `json:"work_bytes,omitempty" minimum:"0" doc:"room for requests; 0: the default"`
	ReplyBytes *int64              `json:"reply_bytes,omitempty" minimum:"0" doc:"room for replies; 0: the default"`
	StageBytes *int64              `json:"stage_bytes,omitempty" minimum:"0" doc:"room for replies on their way into flows; 0: the default"`
	FlowBytes  *int64              `json:"flow_bytes,omitempty" minimum:"0" doc:"room for the state of flows that wait; 0: the default"`
	EventBytes *int64              `json:"event_bytes,omitempty" minimum:"0" doc:"room for events; 0: the default"`
	DeadBytes  *int64              `json:"dead_bytes,omitempty" minimum:"0" doc:"room for dead letters not taken in yet; 0: the default"`
	EventAge   *workqueue.Duration `json:"event_age,omitempty" doc:"how long events stay; 0s: the default" example:"168h"`
}

// On returns the values with the changes.
func (c *StreamChanges) On(v StreamValues) StreamValues {
	to := reflect.ValueOf(&v).Elem()
	for field, given := range reflect.ValueOf(c).Elem().Fields() {
		if into := to.FieldByName(field.Name); !given.IsNil() {
			into.Set(given.Elem().Convert(into.Type()))
		}
	}
	return v
}

var errNoStreamSettings = workqueue.BadSetting("no node has started on this database yet; give the first one its " +
	"--stream-replicas, --work-max-bytes and the like")

// ChangeStreams changes settings of the streams, with an audit entry, and returns all of them. The leader applies
// them to JetStream and records the result. A change without effect writes nothing.
func (s Store) ChangeStreams(ctx context.Context, change StreamChanges, actor string) (set StreamSettings, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		set, err = scanStreamSettings(tx.Query(ctx, lockStreamSettings))
		if err := pg.NoRow(err, errNoStreamSettings); err != nil {
			return err
		}
		before, after := set.StreamValues, change.On(set.StreamValues)
		if before == after {
			return nil
		}
		if err := after.Validate(); err != nil {
			return err
		}
		if set, err = scanStreamSettings(tx.Query(ctx, changeStreamSettings, after.args(actor)...)); err != nil {
			return err
		}
		was, is := before.named(), after.named()
		for name := range is { // only changes are audited
			if was[name] == is[name] {
				delete(was, name)
				delete(is, name)
			}
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "streams_set", Subject: "streams", Before: was,
			After: is})
	})
	return set, pg.Wrap(err, "set the streams")
}

// StreamsApplied records that a revision of the settings was applied.
func (s Store) StreamsApplied(ctx context.Context, lease workqueue.Lease, set *StreamSettings) error {
	return s.noteStreams(ctx, lease, streamsApplied, set.Revision, set.StreamValues)
}

// StreamsRefused records why it could not be applied, and when that is retried.
func (s Store) StreamsRefused(ctx context.Context, lease workqueue.Lease, set *StreamSettings, why string,
	again time.Duration,
) error {
	why = strings.TrimSpace(pg.Plain(why))
	return s.noteStreams(ctx, lease, streamsRefused, set.Revision, why, again)
}

func (s Store) noteStreams(ctx context.Context, lease workqueue.Lease, statement string, args ...any) error {
	_, err := New(s.db).ExecAsLeader(ctx, lease, statement, args...)
	return pg.Wrap(err, "record the settings of the streams")
}
