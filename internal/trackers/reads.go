package trackers

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/workqueue"
)

// Get returns a batch with up to the requested number of missing ranges.
func (s *Service) Get(
	ctx context.Context, in trackerclient.GetRequest, by Caller,
) (out trackerclient.BatchView, err error) {
	batch, err := readBatch("batch", in.Batch)
	if err != nil {
		return out, err
	}
	if in.Missing < 0 || in.Missing > trackerclient.MaxMissing {
		return out, outOfRange("missing", in.Missing, trackerclient.MaxMissing)
	}
	info, err := tracker.Get(ctx, s.db.Pool, batch)
	if err != nil {
		return out, told(err)
	}
	out = trackerclient.BatchView{
		BatchSummary: summaryOf(&info.Summary, by.Sight), Pending: info.Pending, Done: info.Done, Failed: info.Failed,
	}
	if len(info.Codes) > 0 {
		out.Codes = map[string]int64{}
	}
	for _, c := range info.Codes {
		out.Codes[c.Code] = c.Items
	}
	if in.Missing > 0 {
		page, err := s.Missing(ctx, trackerclient.MissingRequest{Batch: in.Batch, Limit: in.Missing}, by)
		if err != nil {
			return out, err
		}
		out.Missing = page.Ranges
	}
	return out, nil
}

func summaryOf(i *tracker.Summary, sight Visibility) trackerclient.BatchSummary {
	out := trackerclient.BatchSummary{
		ID: i.ID.String(), Namespace: i.Namespace, Owner: i.Owner, Key: i.Key, State: string(i.State), Items: i.Items,
		Groups: i.Groups, OpenGroups: i.OpenGroups, CreatedBy: i.CreatedBy, CreatedAt: i.CreatedAt, ActiveAt: i.ActiveAt,
		SealedAt: i.SealedAt, CompletedAt: i.CompletedAt, ExpiredAt: i.ExpiredAt, OpenIdle: i.OpenIdle.String(),
		SealedIdle: i.SealedIdle.String(), Keep: i.Keep.String(),
	}
	if i.WebhookURL == "" {
		return out
	}
	why, said, _ := strings.Cut(i.WebhookError, "\n") // our text, then the receiver's
	out.Webhook = &trackerclient.WebhookView{URL: i.WebhookURL, Secret: i.WebhookSecret, State: string(i.WebhookState),
		Attempts: i.WebhookAttempts, NextAt: i.WebhookNextAt, Error: why}
	if sight == Origins {
		out.Webhook.URL = tracker.Hook{URL: i.WebhookURL}.Origin()
	} else if said != "" {
		out.Webhook.Error += ": " + said
	}
	return out
}

// Groups returns the groups after one; without it from the first.
func (s *Service) Groups(
	ctx context.Context, in trackerclient.GroupsRequest, _ Caller,
) (out trackerclient.GroupPage, err error) {
	batch, err := readBatch("batch", in.Batch)
	if err != nil {
		return out, err
	}
	from, limit := 0, cmp.Or(in.Limit, trackerclient.DefaultLimit)
	if in.After != nil {
		from = *in.After + 1
	}
	switch {
	case limit < 1 || limit > trackerclient.MaxPage:
		return out, outOfRange("limit", limit, trackerclient.MaxPage)
	case from < 0 || from > bitfield.MaxGroup+1:
		return out, outOfRange("after", from-1, bitfield.MaxGroup)
	}
	groups, err := tracker.GroupStates(ctx, s.db.Pool, batch, from, limit+1)
	if err != nil {
		return out, told(err)
	}
	out = trackerclient.GroupPage{Batch: batch.String(), Groups: []trackerclient.GroupView{}}
	for _, g := range groups[:min(limit, len(groups))] {
		out.Groups = append(out.Groups, trackerclient.GroupView(g))
	}
	if len(groups) > limit {
		out.Next = &groups[limit-1].Group
	}
	return out, nil
}

// Missing returns ranges of pending items after an item like 12:8191; without it from the first.
func (s *Service) Missing(
	ctx context.Context, in trackerclient.MissingRequest, _ Caller,
) (out trackerclient.MissingPage, err error) {
	batch, err := readBatch("batch", in.Batch)
	if err != nil {
		return out, err
	}
	limit := cmp.Or(in.Limit, trackerclient.DefaultLimit)
	if limit < 1 || limit > trackerclient.MaxMissing {
		return out, outOfRange("limit", limit, trackerclient.MaxMissing)
	}
	from, err := readPosition(in.After)
	if err != nil {
		return out, err
	}
	ranges, next, err := tracker.Missing(ctx, s.db.Pool, batch, from, limit)
	if err != nil {
		return out, told(err)
	}
	out = trackerclient.MissingPage{Batch: batch.String(), Ranges: make([]string, len(ranges))}
	for i, r := range ranges {
		out.Ranges[i] = r.String()
	}
	if next != nil && len(ranges) > 0 {
		last := ranges[len(ranges)-1]
		out.Next = fmt.Sprintf("%d:%d", last.Group, last.Hi-1)
	}
	return out, nil
}

func readPosition(after string) (p tracker.Position, err error) {
	if after == "" {
		return p, nil
	}
	group, index, _ := strings.Cut(after, ":")
	g, err1 := strconv.ParseUint(group, 10, 31)
	i, err2 := strconv.ParseUint(index, 10, 31)
	if err1 != nil || err2 != nil || i >= bitfield.Size {
		return p, badSetting("after", after,
			"%q is not a place in a batch; use the value of next of the page before, like 12:8191", echo(after))
	}
	return tracker.Position{Group: int(g), Index: int(i) + 1}, nil
}

// List returns batches, newest first.
func (s *Service) List(
	ctx context.Context, in trackerclient.ListRequest, by Caller,
) (out trackerclient.BatchPage, err error) {
	limit := cmp.Or(in.Limit, trackerclient.DefaultLimit)
	if limit < 1 || limit > trackerclient.MaxPage {
		return out, outOfRange("limit", limit, trackerclient.MaxPage)
	}
	filter := tracker.Filter{Owner: in.Owner, State: tracker.State(in.State), Limit: limit + 1,
		Namespaces: workqueue.Namespaces(ctx)}
	if in.After != "" {
		if filter.After, err = readBatch("after", in.After); err != nil {
			return out, err
		}
	}
	found, err := tracker.List(ctx, s.db.Pool, filter)
	if err != nil {
		return out, told(err)
	}
	out.Batches = []trackerclient.BatchSummary{}
	for i := range found[:min(limit, len(found))] {
		out.Batches = append(out.Batches, summaryOf(&found[i], by.Sight))
	}
	if len(found) > limit {
		out.Next = out.Batches[limit-1].ID
	}
	return out, nil
}

func outOfRange(place string, value, most int) error {
	return badSetting(place, strconv.Itoa(value), "it is %d; up to %d are allowed", value, most)
}
