package alert

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// AlertSummary is a rule in a list.
type AlertSummary struct {
	Name         string          `json:"name"`
	Version      int             `json:"version"`
	State        string          `json:"state" enum:"active,paused"`
	Spec         json.RawMessage `json:"spec" doc:"with every setting; of secrets their names only"`
	Holding      int64           `json:"holding" doc:"conditions that are active and were reported"`
	Waiting      int64           `json:"waiting" doc:"messages that were not delivered yet"`
	Failures     int             `json:"failures" doc:"attempts that failed since the receiver was last notified"`
	FailingSince *time.Time      `json:"failing_since,omitempty" doc:"when the first of them failed"`
	Error        string          `json:"error,omitempty" doc:"why the last attempt failed, or whom it did not reach"`
	NotifiedAt   *time.Time      `json:"notified_at,omitempty" doc:"when the receiver was last notified"`
	NextAt       time.Time       `json:"next_at" doc:"no attempt is made before"`
	CreatedBy    string          `json:"created_by"`
	CreatedAt    time.Time       `json:"created_at"`
	ChangedBy    string          `json:"changed_by"`
	ChangedAt    time.Time       `json:"changed_at"`
}

// AlertView is a rule, complete.
type AlertView struct {
	AlertSummary
	Source string `json:"source" doc:"the applied text"`
}

// MessageState is the state of a message.
type MessageState string

// The states of a message.
const (
	MessageWaiting   MessageState = "waiting"
	MessageDelivered MessageState = "delivered"
	MessageGivenUp   MessageState = "given_up"
	MessageDropped   MessageState = "dropped"
)

// AlertMessage is a message to a receiver.
type AlertMessage struct {
	ID       uuid.UUID       `json:"id" doc:"the same for each attempt"`
	What     string          `json:"what" enum:"alert,test"`
	Group    string          `json:"group"`
	Severity string          `json:"severity" enum:"info,warning,critical"`
	Body     json.RawMessage `json:"body" doc:"what it tells"`
	State    MessageState    `json:"state" enum:"waiting,delivered,given_up,dropped"`
	Attempts int             `json:"attempts"`
	Error    string          `json:"error,omitempty" doc:"why the last attempt failed, or whom it did not reach"`
	MadeAt   time.Time       `json:"made_at"`
	EndedAt  *time.Time      `json:"ended_at,omitempty" doc:"absent: it waits"`
}

// The number of rules, and of messages, in one list.
const (
	DefaultAlerts   = 100
	MaxAlerts       = 500
	DefaultMessages = 50
	MaxMessages     = 500
)

const (
	alertColumns = `a.name, a.version, a.state, a.spec,
    (SELECT count(*) FROM alert_condition c WHERE c.alert = a.name AND c.notified_severity IS NOT NULL
        AND c.ended_at IS NULL AND NOT c.one_shot),
    (SELECT count(*) FROM alert_message m WHERE m.alert = a.name AND m.state = 'waiting'),
    a.failures, a.failing_since, a.error, a.notified_at, a.next_at, a.created_by, a.created_at, a.changed_by,
    a.changed_at, a.source`

	listAlerts = `
SELECT ` + alertColumns + `
FROM alert a WHERE a.deleted_at IS NULL AND a.name > $1 AND ($3::text[] IS NULL OR a.namespace = ANY ($3))
ORDER BY a.name LIMIT $2`

	oneAlert = `
SELECT ` + alertColumns + `
FROM alert a WHERE a.deleted_at IS NULL AND a.name = $1 AND ($2::text[] IS NULL OR a.namespace = ANY ($2))`

	// alert_message_made, backwards.
	listMessages = `
SELECT id, what, grp, severity, body, state, attempts, error, made_at, ended_at
FROM alert_message WHERE alert = $1 AND made_at < coalesce($2, 'infinity'::timestamptz)
ORDER BY made_at DESC, id DESC LIMIT $3`
)

// AlertList is a page of rules.
type AlertList struct {
	Alerts []AlertSummary `json:"alerts" nullable:"false"`
	Next   string         `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// List lists rules by name, after one.
func (s Store) List(ctx context.Context, after string, limit int) (list AlertList, err error) {
	limit = pg.Limit(limit, DefaultAlerts, MaxAlerts)
	if !pg.ValidText(after) {
		return list, fmt.Errorf("alert %q: %w", after, workqueue.ErrNotFound)
	}
	views, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[AlertView], listAlerts, after, limit+1,
		workqueue.Namespaces(ctx))
	if err != nil {
		return list, fmt.Errorf("list alerts: %w", err)
	}
	views, list.Next = pg.Cut(views, limit, func(v *AlertView) string { return v.Name })
	list.Alerts = make([]AlertSummary, len(views))
	for i := range views {
		list.Alerts[i] = views[i].AlertSummary
	}
	return list, nil
}

// Alert returns a rule. The error wraps ErrNotFound if it does not exist.
func (s Store) Alert(ctx context.Context, name string) (*AlertView, error) {
	if !pg.ValidText(name) {
		return nil, fmt.Errorf("alert %q: %w", name, workqueue.ErrNotFound)
	}
	view, err := pg.One(ctx, s.db.Pool, pgx.RowToStructByPos[AlertView], oneAlert, name,
		workqueue.Namespaces(ctx))
	return &view, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "alert %q", name)
}

// MessageFilter selects messages of a rule.
type MessageFilter struct {
	Alert  string    `path:"name" doc:"its name"`
	Before time.Time `query:"before" doc:"only messages created before"`
	Limit  int       `query:"limit" minimum:"1" maximum:"500" default:"50"` // 0 means DefaultMessages
}

// AlertMessages is a page of a rule's messages.
type AlertMessages struct {
	Messages []AlertMessage `json:"messages" nullable:"false"`
	Next     *time.Time     `json:"next,omitempty" doc:"value of before for the next page; absent on the last"`
}

// Messages lists a rule's messages, newest first.
func (s Store) Messages(ctx context.Context, f MessageFilter) (list AlertMessages, err error) {
	limit := pg.Limit(f.Limit, DefaultMessages, MaxMessages)
	if !pg.ValidText(f.Alert) {
		return list, fmt.Errorf("alert %q: %w", f.Alert, workqueue.ErrNotFound)
	}
	all, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[AlertMessage], listMessages, f.Alert,
		pg.UnlessZero(f.Before), limit+1)
	list.Messages, list.Next = pg.Cut(all, limit, func(m *AlertMessage) *time.Time { return &m.MadeAt })
	return list, pg.Wrap(err, "list messages of alert %s", f.Alert)
}
