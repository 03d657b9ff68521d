package tracker

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

const (
	// reapedAtOnce bounds the trackers that one transaction of the leader ends or deletes; of large ones it takes fewer.
	reapedAtOnce = 100
	// purgedAtOnce bounds the rows, of about a kilobyte, that one transaction deletes.
	purgedAtOnce = 1000
)

// ReapTrackers expires trackers that were idle for too long, and marks as deleted those that ended long ago. more tells
// to come again at once. See [service.Reap].
func (s Store) ReapTrackers(ctx context.Context, lease workqueue.Lease) (reaped service.Reaped, more bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		reaped, err = service.Reap(ctx, tx, reapedAtOnce)
		return err
	})
	return reaped, reaped.More, err
}

// PurgeTrackers deletes some rows of deleted trackers. more tells to come again soon. See [service.Purge].
func (s Store) PurgeTrackers(ctx context.Context, lease workqueue.Lease) (rows int, more bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		rows, err = service.Purge(ctx, tx, purgedAtOnce)
		return err
	})
	return rows, rows >= purgedAtOnce, err
}

// DueTrackerWebhooks returns webhooks that are to be called now and that there is room for.
func (s Store) DueTrackerWebhooks(ctx context.Context, room service.WebhookRoom) ([]service.Webhook, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	return service.DueWebhooks(ctx, s.db.Pool, room)
}

// TrackerWebhookDelivered notes, under the lease, that a webhook was answered.
func (s Store) TrackerWebhookDelivered(
	ctx context.Context, lease workqueue.Lease, w service.Webhook,
) (noted bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		noted, err = service.WebhookDelivered(ctx, tx, w)
		return err
	})
	return noted, err
}

// TrackerWebhookFailed notes, under the lease, why a webhook failed, and when it is retried, if ever.
func (s Store) TrackerWebhookFailed(ctx context.Context, lease workqueue.Lease, w service.Webhook, reason string,
	pause time.Duration, giveUp bool,
) (noted bool, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		noted, err = service.WebhookFailed(ctx, tx, w, pg.Plain(reason), pause, giveUp)
		return err
	})
	return noted, err
}
