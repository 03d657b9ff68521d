package trackers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

const (
	// reapLook is the interval of checking for batches that were idle too long or ended long ago.
	reapLook = 5 * time.Second
	// purgePause leaves the disk to others between two deleting transactions.
	purgePause = 50 * time.Millisecond
	// reapedAtOnce limits the trackers that one transaction ends or deletes; fewer if they are large.
	reapedAtOnce = 100
	// purgedAtOnce limits the rows, of about a kilobyte, that one transaction deletes.
	purgedAtOnce = 1000
)

// Reaper returns a leader task that ends abandoned batches and deletes those that ended long ago. It deletes a
// bounded number of rows per transaction, and runs again soon while there are more. Its events are published by the
// leader's next sweep.
func Reaper(db *database.DB, log *zap.Logger) func(context.Context, workqueue.Lease) (time.Duration, error) {
	return func(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
		reaped, rows := tracker.Reaped{More: true}, 0
		for reaped.More {
			err = session.New(db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
				reaped, err = tracker.Reap(ctx, tx, reapedAtOnce)
				return err
			})
			if err != nil {
				return 0, fmt.Errorf("reap trackers: %w", err)
			}
			for _, id := range reaped.Expired {
				log.Warn("a tracker expired: no one touched it for too long", zap.Stringer("batch", id))
			}
		}
		err = session.New(db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
			rows, err = tracker.Purge(ctx, tx, purgedAtOnce)
			return err
		})
		switch {
		case err != nil:
			return 0, fmt.Errorf("delete rows of trackers: %w", err)
		case rows >= purgedAtOnce:
			return purgePause, nil
		}
		return reapLook, nil
	}
}

// webhookLook is the interval of checking for due webhooks: another node may have ended a batch.
const webhookLook = time.Second

// WebhooksConfig configures Webhooks. Without connections every webhook fails, with the reason.
type WebhooksConfig struct {
	httpfetch.SenderConfig

	Log        *zap.Logger   // nil: none
	FirstRetry time.Duration // after a failed first attempt; 0: 5 s
}

// Webhooks sends notifications of ended batches. Its Run is a leader task.
type Webhooks struct {
	db     *database.DB
	sender *httpfetch.Sender
	log    *zap.Logger
	retry  httpfetch.Retry
}

// NewWebhooks returns a sender of webhooks.
func NewWebhooks(db *database.DB, config WebhooksConfig) (*Webhooks, error) {
	sender, err := httpfetch.NewSender(config.SenderConfig)
	if err != nil {
		return nil, err
	}
	w := &Webhooks{db: db, sender: sender, log: config.Log,
		retry: httpfetch.Retry{First: cmp.Or(max(config.FirstRetry, 0), firstRetry), Longest: longestRetry}}
	w.log = cmp.Or(w.log, zap.NewNop())
	return w, nil
}

const (
	// webhooksAtOnce limits concurrent attempts.
	webhooksAtOnce = 256
	// webhooksPerHost limits them per host, so that hosts that do not answer leave room for others.
	webhooksPerHost = 16
	// webhooksKept of all attempts are reserved for hosts without one in progress.
	webhooksKept = 64
)

type endedAttempt struct {
	batch uuid.UUID
	err   error // the outcome could not be recorded
}

// Run sends what is due until nothing is. Outcomes are recorded under the lease: a leader that lost it records
// nothing, and its successor retries under the same ID. Attempts are independent: a slow receiver delays only its own
// host beyond webhooksPerHost, unless there are more than webhooksKept such hosts. Run returns when all attempts have
// ended, also after an error.
func (w *Webhooks) Run(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	under := map[uuid.UUID]tracker.Webhook{}         // in progress, by batch
	ended := make(chan endedAttempt, webhooksAtOnce) // has room for all of them
	look := time.NewTicker(webhookLook)
	defer look.Stop()
	for {
		if err == nil { // after an error only finish those in progress
			err = w.begin(ctx, lease, under, ended)
		}
		if len(under) == 0 {
			return webhookLook, err
		}
		select {
		case <-look.C:
		case e := <-ended:
			delete(under, e.batch)
			err = cmp.Or(err, e.err)
			for range len(ended) { // those that ended meanwhile are handled together
				e = <-ended
				delete(under, e.batch)
				err = cmp.Or(err, e.err)
			}
		}
	}
}

func (w *Webhooks) begin(
	ctx context.Context, lease workqueue.Lease, under map[uuid.UUID]tracker.Webhook, ended chan<- endedAttempt,
) error {
	bounded, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	due, err := tracker.DueWebhooks(bounded, w.db.Pool, tracker.WebhookRoom{AtOnce: webhooksAtOnce,
		PerHost: webhooksPerHost, Kept: webhooksKept, UnderWay: slices.Collect(maps.Values(under))})
	if err != nil {
		return fmt.Errorf("find webhooks: %w", err)
	}
	for i := range due {
		hook := &due[i]
		under[hook.Batch] = *hook
		go func() { ended <- endedAttempt{hook.Batch, w.survive(ctx, lease, hook)} }()
	}
	return nil
}

// survive turns a panic of an attempt into an error of the leader task, whose recover is in another goroutine.
func (w *Webhooks) survive(ctx context.Context, lease workqueue.Lease, hook *tracker.Webhook) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("an attempt at a webhook panicked", zap.Stringer("batch", hook.Batch), zap.Any("panic", p),
				zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("an attempt at a webhook: panic: %v", p)
		}
	}()
	return w.call(ctx, lease, hook)
}

func (w *Webhooks) call(ctx context.Context, lease workqueue.Lease, hook *tracker.Webhook) error {
	came := w.deliver(ctx, hook)
	if ctx.Err() != nil {
		return ctx.Err() // interrupted; the next leader retries it
	}
	state, reason, pause := tracker.WebhookDelivered, "", time.Duration(0)
	if !came.Delivered {
		state, pause = tracker.WebhookDue, w.retry.In(hook.Attempts+1, came.Wait)
		reason = strings.ReplaceAll(strings.ToValidUTF8(came.Reason(), "\uFFFD"), "\x00", "\uFFFD")
		if came.GiveUp || hook.Owed >= webhookTimeout && hook.Attempts+1 >= webhookAttempts {
			state = tracker.WebhookGivenUp
		}
	}
	noted := false
	err := session.New(w.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) (err error) {
		noted, err = tracker.NoteWebhook(ctx, tx, *hook, state, reason, pause)
		return err
	})
	if noted && state == tracker.WebhookGivenUp {
		w.log.Warn("a webhook is abandoned", zap.Stringer("batch", hook.Batch), zap.Int("attempt", hook.Attempts+1),
			zap.String("why", came.Why))
	}
	return err
}

const (
	// firstRetry is the pause after the first failed attempt. It doubles up to longestRetry; a Retry-After can lengthen
	// it up to that.
	firstRetry   = 5 * time.Second
	longestRetry = time.Hour
	// webhookTimeout is how long a webhook is retried, and webhookAttempts the minimum number of attempts: a time when
	// Tranche was down must not count against the receiver.
	webhookTimeout  = 24 * time.Hour
	webhookAttempts = 12
)

func checkWebhook(conns *connections.Connections, set *trackerclient.WebhookSettings) error {
	if set == nil {
		return nil
	}
	err := httpfetch.CheckWebhook(conns, set.URL, set.Secret)
	if bad, ok := errors.AsType[*httpfetch.WebhookError](err); ok {
		place := "webhook"
		if bad.Field != "" {
			place += "." + bad.Field
		}
		return &trackerclient.Error{Code: trackerclient.CodeWebhook, Place: place, Value: echo(bad.Value), Message: bad.Why}
	}
	return err
}

func (w *Webhooks) deliver(ctx context.Context, hook *tracker.Webhook) httpfetch.Delivery {
	body, err := webhookBody(hook)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	return w.sender.Send(ctx, &httpfetch.Webhook{
		ID: hook.EventID.String(), URL: hook.URL, Secret: hook.Secret, Body: body,
	})
}

func webhookBody(hook *tracker.Webhook) ([]byte, error) {
	var event struct {
		Kind string    `json:"kind"`
		At   time.Time `json:"at"`
	}
	if err := json.Unmarshal(hook.Event, &event); err != nil {
		return nil, fmt.Errorf("read the event of batch %s: %w", hook.Batch, err)
	}
	return httpfetch.WebhookBody(event.Kind, event.At, hook.Event)
}
