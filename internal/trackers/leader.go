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
	// reapLook is how often the leader looks for batches that were idle for too long or ended long ago.
	reapLook = 5 * time.Second
	// purgePause lets others have the disk between two transactions that delete rows.
	purgePause = 50 * time.Millisecond
	// reapedAtOnce bounds the trackers that one transaction ends or deletes; of large ones it takes fewer.
	reapedAtOnce = 100
	// purgedAtOnce bounds the rows, of about a kilobyte, that one transaction deletes.
	purgedAtOnce = 1000
)

// Reaper returns a leader task that ends batches that everybody forgot, and deletes those that ended long ago. While
// there are rows to delete it comes again soon: each time it deletes a bounded number in a transaction of its own. The
// events that it leaves are published with the leader's next sweep.
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

// webhookLook is how often the leader looks for webhooks that are due: another node may have ended a batch.
const webhookLook = time.Second

// WebhooksConfig is what Webhooks need beside their database: without connections every webhook fails, and says why.
type WebhooksConfig struct {
	httpfetch.SenderConfig

	Log        *zap.Logger   // nil: none
	FirstRetry time.Duration // the pause after a first attempt that failed; 0: 5 s
}

// Webhooks tell of the ends of batches. Their Run is a leader task.
type Webhooks struct {
	db     *database.DB
	sender *httpfetch.Sender
	log    *zap.Logger
	retry  httpfetch.Retry
}

// NewWebhooks returns what delivers webhooks.
func NewWebhooks(db *database.DB, config WebhooksConfig) (*Webhooks, error) {
	sender, err := httpfetch.NewSender(config.SenderConfig)
	if err != nil {
		return nil, err
	}
	w := &Webhooks{db: db, sender: sender, log: config.Log,
		retry: httpfetch.Retry{First: cmp.Or(max(config.FirstRetry, 0), firstRetry), Longest: longestRetry}}
	if w.log == nil {
		w.log = zap.NewNop()
	}
	return w, nil
}

const (
	// webhooksAtOnce is how many attempts are in progress.
	webhooksAtOnce = 256
	// webhooksPerHost is how many of them are at one host, so that those that do not answer leave room for others.
	webhooksPerHost = 16
	// webhooksKept is how many of all attempts are only for hosts that have none in progress.
	webhooksKept = 64
)

// endedAttempt is an attempt that ended.
type endedAttempt struct {
	batch uuid.UUID
	err   error // what came of it could not be noted
}

// Run delivers what is due, until nothing is. What comes of an attempt is noted under the lease: a leader that is none
// any more notes nothing, and its successor tries again, under the same id. Attempts are independent of each other: a
// receiver that keeps one waiting delays no other, but those to its own host beyond webhooksPerHost, unless there are
// more than webhooksKept such hosts. Run returns when all of them have ended, after an error too.
func (w *Webhooks) Run(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	under := map[uuid.UUID]tracker.Webhook{}         // in progress, by their batches
	ended := make(chan endedAttempt, webhooksAtOnce) // has room for all of them
	look := time.NewTicker(webhookLook)
	defer look.Stop()
	for {
		if err == nil { // else what is in progress is seen to its end
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
			for range len(ended) { // those that ended at the same time are taken together
				e = <-ended
				delete(under, e.batch)
				err = cmp.Or(err, e.err)
			}
		}
	}
}

// begin starts an attempt at everything that is due and that there is room for.
func (w *Webhooks) begin(
	ctx context.Context, lease workqueue.Lease, under map[uuid.UUID]tracker.Webhook, ended chan<- endedAttempt,
) error {
	bounded, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	due, err := tracker.DueWebhooks(bounded, w.db.Pool, tracker.WebhookRoom{AtOnce: webhooksAtOnce,
		PerHost: webhooksPerHost, Kept: webhooksKept, UnderWay: slices.Collect(maps.Values(under))})
	if err != nil {
		return fmt.Errorf("look for webhooks: %w", err)
	}
	for i := range due {
		hook := &due[i]
		under[hook.Batch] = *hook
		go func() { ended <- endedAttempt{hook.Batch, w.survive(ctx, lease, hook)} }()
	}
	return nil
}

// survive makes a panic of an attempt an error of the leader task: the recover of whoever runs that is in another
// goroutine.
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

// call makes one attempt at a webhook and notes what came of it.
func (w *Webhooks) call(ctx context.Context, lease workqueue.Lease, hook *tracker.Webhook) error {
	came := w.deliver(ctx, hook)
	if ctx.Err() != nil {
		return ctx.Err() // it was cut off, and is retried by whoever leads then
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
		w.log.Warn("a webhook is given up", zap.Stringer("batch", hook.Batch), zap.Int("attempt", hook.Attempts+1),
			zap.String("why", came.Why))
	}
	return err
}

const (
	// firstRetry is the pause after the first attempt that failed; it doubles up to longestRetry, and a Retry-After
	// makes it longer up to there.
	firstRetry   = 5 * time.Second
	longestRetry = time.Hour
	// webhookTimeout is how long one is tried before it is given up, and webhookAttempts how often at the least: when
	// no one could send it, because Tranche was down, no time of its receiver's has passed.
	webhookTimeout  = 24 * time.Hour
	webhookAttempts = 12
)

// checkWebhook refuses a webhook that could not be sent.
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

// deliver makes one attempt.
func (w *Webhooks) deliver(ctx context.Context, hook *tracker.Webhook) httpfetch.Delivery {
	body, err := webhookBody(hook)
	if err != nil {
		return httpfetch.Delivery{GiveUp: true, Why: err.Error()}
	}
	return w.sender.Send(ctx, &httpfetch.Webhook{
		ID: hook.EventID.String(), URL: hook.URL, Secret: hook.Secret, Body: body,
	})
}

// webhookBody is the body of a webhook. It is the same for every attempt.
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
