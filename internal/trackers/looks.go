package trackers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/workqueue"
)

// Visibility is how much of webhooks someone sees: their URLs may hold secrets, and what receivers say may repeat
// these.
type Visibility bool

// What there is to see.
const (
	Origins Visibility = false // the scheme and the host, and what went wrong in words of ours
	All     Visibility = true
)

// Get returns a batch as it stands, with up to so many ranges of what is missing.
func (s *Service) Get(
	ctx context.Context, batch batchID, missing int, sight Visibility,
) (out fanout.BatchView, err error) {
	if missing < 0 || missing > fanout.MaxMissing {
		return out, outOfRange("missing", missing, fanout.MaxMissing)
	}
	info, err := s.store.Tracker(ctx, batch)
	if err != nil {
		return out, told(err)
	}
	out = fanout.BatchView{
		BatchSummary: summaryOf(&info.Summary, sight), Pending: info.Pending, Done: info.Done, Failed: info.Failed,
	}
	if len(info.Codes) > 0 {
		out.Codes = map[string]int64{}
	}
	for _, c := range info.Codes {
		out.Codes[c.Code] = c.Items
	}
	if missing > 0 {
		page, err := s.Missing(ctx, batch, "", missing)
		if err != nil {
			return out, err
		}
		out.Missing = page.Ranges
	}
	return out, nil
}

func summaryOf(i *service.Summary, sight Visibility) fanout.BatchSummary {
	out := fanout.BatchSummary{
		ID: i.ID.String(), Owner: i.Owner, Key: i.Key, State: string(i.State), Items: i.Items, Groups: i.Groups,
		OpenGroups: i.OpenGroups, CreatedBy: i.CreatedBy, CreatedAt: i.CreatedAt, ActiveAt: i.ActiveAt,
		SealedAt: i.SealedAt, CompletedAt: i.CompletedAt, ExpiredAt: i.ExpiredAt, OpenIdle: i.OpenIdle.String(),
		SealedIdle: i.SealedIdle.String(), Keep: i.Keep.String(),
	}
	if hook := i.Webhook; hook.URL != "" {
		out.Webhook = webhookOf(&hook, sight)
	}
	return out
}

func webhookOf(hook *service.WebhookInfo, sight Visibility) *fanout.WebhookView {
	out := &fanout.WebhookView{URL: hook.URL, Secret: hook.Secret, State: hook.State, Attempts: hook.Attempts,
		NextAt: hook.NextAt}
	why, said, _ := strings.Cut(hook.LastError, "\n") // see joinReason
	if out.Error = why; sight == Origins {
		out.URL = service.Hook{URL: hook.URL}.Origin()
	} else if said != "" {
		out.Error += ": " + said
	}
	return out
}

// Groups returns the groups that follow one; nil: from the first on.
func (s *Service) Groups(ctx context.Context, batch batchID, after *int, limit int) (out fanout.GroupPage, err error) {
	from, limit := 0, cmp.Or(limit, fanout.DefaultLimit)
	if after != nil {
		from = *after + 1
	}
	switch {
	case limit < 1 || limit > fanout.MaxPage:
		return out, outOfRange("limit", limit, fanout.MaxPage)
	case from < 0 || from > bitfield.MaxGroup+1:
		return out, outOfRange("after", from-1, bitfield.MaxGroup)
	}
	groups, err := s.store.TrackerGroups(ctx, batch, from, limit+1)
	if err != nil {
		return out, told(err)
	}
	out = fanout.GroupPage{Batch: batch.String(), Groups: []fanout.GroupView{}}
	for _, g := range groups[:min(limit, len(groups))] {
		out.Groups = append(out.Groups, fanout.GroupView(g))
	}
	if len(groups) > limit {
		out.Next = &groups[limit-1].Group
	}
	return out, nil
}

// Missing returns ranges of what is pending, after an item like 12:8191; nothing: from the first on.
func (s *Service) Missing(
	ctx context.Context, batch batchID, after string, limit int,
) (out fanout.MissingPage, err error) {
	limit = cmp.Or(limit, fanout.DefaultLimit)
	if limit < 1 || limit > fanout.MaxMissing {
		return out, outOfRange("limit", limit, fanout.MaxMissing)
	}
	from, err := readPosition(after)
	if err != nil {
		return out, err
	}
	ranges, next, err := s.store.TrackerMissing(ctx, batch, from, limit)
	if err != nil {
		return out, told(err)
	}
	out = fanout.MissingPage{Batch: batch.String(), Ranges: make([]string, len(ranges))}
	for i, r := range ranges {
		out.Ranges[i] = r.String()
	}
	if next != nil && len(ranges) > 0 {
		last := ranges[len(ranges)-1]
		out.Next = fmt.Sprintf("%d:%d", last.Group, last.Hi-1)
	}
	return out, nil
}

// readPosition returns the place behind an item.
func readPosition(after string) (p service.Position, err error) {
	if after == "" {
		return p, nil
	}
	group, index, _ := strings.Cut(after, ":")
	g, err1 := strconv.ParseUint(group, 10, 31)
	i, err2 := strconv.ParseUint(index, 10, 31)
	if err1 != nil || err2 != nil || i >= bitfield.Size {
		return p, &fanout.Error{Code: fanout.CodeBadSetting, Place: "after", Value: echo(after), Message: fmt.Sprintf(
			"%q is no place in a batch; use the value of next of the page before, like 12:8191", echo(after))}
	}
	return service.Position{Group: int(g), Index: int(i) + 1}, nil
}

// List returns batches, newest first.
func (s *Service) List(
	ctx context.Context, which fanout.ListRequest, sight Visibility,
) (out fanout.BatchPage, err error) {
	limit := cmp.Or(which.Limit, fanout.DefaultLimit)
	if limit < 1 || limit > fanout.MaxPage {
		return out, outOfRange("limit", limit, fanout.MaxPage)
	}
	filter := service.Filter{Owner: which.Owner, Limit: limit + 1}
	if filter.State, err = readState(which.State); err != nil {
		return out, err
	}
	if err := checkName("owner", which.Owner); err != nil {
		return out, err
	}
	if which.After != "" {
		if filter.After, err = ParseBatch(which.After); err != nil {
			return out, placed(err, "after")
		}
	}
	found, err := s.store.Trackers(ctx, filter)
	if err != nil {
		return out, told(err)
	}
	out.Batches = []fanout.BatchSummary{}
	for i := range found[:min(limit, len(found))] {
		out.Batches = append(out.Batches, summaryOf(&found[i], sight))
	}
	if len(found) > limit {
		out.Next = out.Batches[limit-1].ID
	}
	return out, nil
}

func outOfRange(place string, value, most int) error {
	return &fanout.Error{Code: fanout.CodeBadSetting, Place: place, Value: strconv.Itoa(value), Message: fmt.Sprintf(
		"it is %d; up to %d are allowed", value, most)}
}

func readState(text string) (tracker.State, error) {
	switch state := tracker.State(text); state {
	case "", tracker.StateOpen, tracker.StateSealed, tracker.StateCompleted, service.StateExpired:
		return state, nil
	}
	return "", &fanout.Error{Code: fanout.CodeBadSetting, Place: "state", Value: echo(text), Message: fmt.Sprintf(
		"%q is no state; there are open, sealed, completed and expired", echo(text))}
}

const (
	// reapLook is how often the leader looks for batches that were idle for too long or ended long ago.
	reapLook = 5 * time.Second
	// purgePause lets others have the disk between two transactions that delete rows.
	purgePause = 50 * time.Millisecond
)

// ReapStore ends and deletes batches; Store of workqueue/tracker is one.
type ReapStore interface {
	ReapTrackers(ctx context.Context, lease workqueue.Lease) (reaped service.Reaped, more bool, err error)
	PurgeTrackers(ctx context.Context, lease workqueue.Lease) (rows int, more bool, err error)
}

// Reaper ends batches that everybody forgot, and deletes those that ended long ago, a little at a time. Its Run is a
// leader task.
type Reaper struct {
	store ReapStore
	log   *zap.Logger
}

// NewReaper returns a Reaper. The events that it leaves are published with the leader's next sweep.
func NewReaper(store ReapStore, log *zap.Logger) (*Reaper, error) {
	if store == nil {
		return nil, errors.New("trackers: a reaper needs a store")
	}
	if log == nil {
		log = zap.NewNop()
	}
	return &Reaper{store: store, log: log}, nil
}

// Run looks at everything whose time may have come. While there are rows to delete it comes again soon: each time it
// deletes a bounded number in a transaction of its own.
func (r *Reaper) Run(ctx context.Context, lease workqueue.Lease) (again time.Duration, err error) {
	for more := true; more; {
		var reaped service.Reaped
		reaped, more, err = r.store.ReapTrackers(ctx, lease)
		if err != nil {
			return 0, fmt.Errorf("reap trackers: %w", err)
		}
		for _, id := range reaped.Expired {
			r.log.Warn("a tracker expired: no one touched it for too long", zap.Stringer("batch", id))
		}
	}
	_, more, err := r.store.PurgeTrackers(ctx, lease)
	if err != nil {
		return 0, fmt.Errorf("delete rows of trackers: %w", err)
	}
	if more {
		return purgePause, nil
	}
	return reapLook, nil
}
