package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/trackers"
)

const (
	// maxAckBody fits 100,000 ids and 10,000 ranges.
	maxAckBody     = 8 << 20
	maxTrackerBody = 64 << 10
)

// TrackerPath is the batch in an operation's path.
type TrackerPath struct {
	ID string `path:"id" doc:"a batch's ID, a UUID" example:"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"`
}

const trackerDescription = `A batch has a bit for each pending item. Exactly one call learns that it is complete: the
one that acknowledges the last item after the seal, or the seal if no item is pending. An event reports it once, and a
webhook if set. A problem's type ends with a code, like urn:tranche:tracker:no_such_group. With a key or an id the
call can be repeated: the batch is opened once.`

const addGroupsDescription = `Items are numbered within groups of 8192, all full but the last of a call, and their ids
are batch:group:index. The caller can build them from first_group and items. With a key the call can be repeated: the
items are added once. Additions are not in the audit log; the batch counts them.`

const ackDescription = `Ids are batch:group:index; ranges are batch:group:low-high, batch:group (all of it),
batch:group-group and batch:all, and may leave the batch out where the path names it. Items of any groups and batches go
in one call, all or none. Items acknowledged before stay as they are, so a call can be repeated. With a code the
items have failed permanently. Concurrent calls share a transaction. They are not in the audit log:
there may be thousands a second.`

type trackerRoutes struct {
	*apicore.Core

	trackers *trackers.Service
}

func newTrackers(k *apicore.Core, service *trackers.Service, sources *connections.Connections) *trackerRoutes {
	if service == nil {
		service = trackers.New(k.Store, trackers.Config{Connections: sources, Log: k.Log})
	}
	return &trackerRoutes{k, service}
}

// caller returns the caller and how much of webhooks it sees: viewers do not see their paths.
func (s *trackerRoutes) caller(ctx context.Context, actor string) trackers.Caller {
	return trackers.Caller{Actor: actor, Sight: trackers.Visibility(apicore.Allows(ctx, access.Operator))}
}

func seen[In, Out any](
	s *trackerRoutes, look func(context.Context, In, trackers.Caller) (Out, error),
) func(context.Context, *In) (Out, error) {
	return func(ctx context.Context, in *In) (Out, error) { return look(ctx, *in, s.caller(ctx, "")) }
}

func (s *trackerRoutes) Register(api huma.API) {
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere,
		apicore.Get("list-trackers", "/trackers", "List tracker batches, newest first")),
		seen(s, s.trackers.List))
	s.registerOpenTracker(api)
	apicore.Register(s.Core, api, apicore.Get("get-tracker", "/trackers/{id}",
		"A tracker batch: its counts and its webhook"), seen(s, s.trackers.Get))
	apicore.Register(s.Core, api, apicore.Get("list-tracker-groups", "/trackers/{id}/groups",
		"List the groups of a batch"), s.listTrackerGroups)
	apicore.Register(s.Core, api, apicore.Get("list-tracker-missing", "/trackers/{id}/missing",
		"List pending items, as ranges"),
		seen(s, s.trackers.Missing))
	own := func(most int64, op huma.Operation) huma.Operation { // of an ownBody
		op.SkipValidateBody = true
		return apicore.Bulky(op, most)
	}
	apicore.Register(s.Core, api, own(maxTrackerBody, apicore.Post("add-tracker-items", "/trackers/{id}/groups",
		"Add items to an open batch", addGroupsDescription)), s.addTrackerItems)
	apicore.Register(s.Core, api, own(maxAckBody, apicore.Post("ack-tracker-items", "/trackers/ack",
		"Acknowledge items of any batches", ackDescription)), s.ackTrackerItems)
	apicore.Register(s.Core, api, own(maxAckBody, apicore.Post("ack-tracker", "/trackers/{id}/ack",
		"Acknowledge items of one batch", ackDescription)), s.ackTracker)
	apicore.Register(s.Core, api, apicore.Post("seal-tracker", "/trackers/{id}/seal",
		"Close a batch to new items",
		"With nothing pending the batch is complete, and the answer says so. The call can be repeated."), s.sealTracker)
	apicore.Register(s.Core, api, apicore.Delete("delete-tracker", "/trackers/{id}",
		"Delete a batch in any state",
		"No event is published and no webhook sent. Its ids then name no batch."), s.deleteTracker)
}

type openTrackerInput struct {
	apicore.Actor
	Body trackerclient.BatchSettings
}

type openTrackerAnswer struct {
	Status int
	Body   trackerclient.BatchOpened
}

// registerOpenTracker also tells a new batch from an existing one by the status.
func (s *trackerRoutes) registerOpenTracker(api huma.API) {
	op := apicore.In(apicore.Into, apicore.Bulky(apicore.Post("open-tracker", "/trackers", "Open a tracker batch",
		trackerDescription), maxTrackerBody))
	op.DefaultStatus = http.StatusCreated
	apicore.RegisterAnswer(s.Core, api, op, func(ctx context.Context, in *openTrackerInput) (*openTrackerAnswer, error) {
		opened, err := s.trackers.Open(ctx, in.Body, s.caller(ctx, in.Name))
		answer := &openTrackerAnswer{Status: http.StatusCreated, Body: opened}
		if opened.Existing {
			answer.Status = http.StatusOK
		}
		return answer, err
	})
}

type trackerGroupsInput struct {
	TrackerPath
	After int `query:"after" minimum:"-1" maximum:"2147483647" default:"-1" doc:"only groups after this one"`
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

func (s *trackerRoutes) listTrackerGroups(
	ctx context.Context, in *trackerGroupsInput,
) (trackerclient.GroupPage, error) {
	which := trackerclient.GroupsRequest{Batch: in.ID, After: &in.After, Limit: in.Limit}
	return s.trackers.Groups(ctx, which, s.caller(ctx, ""))
}

// ownBody is a body that the service parses itself, strictly, as over NATS, and reports the first mistake of. huma
// would report all of four million mistakes, which takes more than a gigabyte.
type ownBody[T any] struct {
	asked T
	bad   error
}

func (o *ownBody[T]) UnmarshalJSON(body []byte) error {
	o.bad = trackers.ReadBody(body, &o.asked)
	return nil
}

func (*ownBody[T]) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[T](), true, "")
}

type addTrackerInput struct {
	TrackerPath
	Body ownBody[trackerclient.GroupSettings]
}

func (s *trackerRoutes) addTrackerItems(ctx context.Context, in *addTrackerInput) (trackerclient.GroupsAdded, error) {
	if in.Body.bad != nil {
		return trackerclient.GroupsAdded{}, in.Body.bad
	}
	return s.trackers.Add(ctx, trackerclient.AddRequest{Batch: in.ID, GroupSettings: in.Body.asked}, s.caller(ctx, ""))
}

type ackItemsInput struct {
	Body ownBody[trackerclient.Acknowledgement]
}

func (s *trackerRoutes) ackTrackerItems(ctx context.Context, in *ackItemsInput) (trackerclient.BatchesAcked, error) {
	return s.ackTracker(ctx, &ackTrackerInput{Body: in.Body})
}

type ackTrackerInput struct {
	TrackerPath
	Body ownBody[trackerclient.Acknowledgement]
}

func (s *trackerRoutes) ackTracker(ctx context.Context, in *ackTrackerInput) (trackerclient.BatchesAcked, error) {
	if in.Body.bad != nil {
		return trackerclient.BatchesAcked{}, in.Body.bad
	}
	return s.trackers.Ack(ctx, trackerclient.AckRequest{Batch: in.ID, Acknowledgement: in.Body.asked}, s.caller(ctx, ""))
}

type trackerInput struct {
	TrackerPath
	apicore.Actor
}

func (s *trackerRoutes) sealTracker(ctx context.Context, in *trackerInput) (trackerclient.BatchSealed, error) {
	return s.trackers.Seal(ctx, trackerclient.BatchRequest{Batch: in.ID}, s.caller(ctx, in.Name))
}

func (s *trackerRoutes) deleteTracker(ctx context.Context, in *trackerInput) (trackerclient.BatchDeleted, error) {
	return s.trackers.Delete(ctx, trackerclient.BatchRequest{Batch: in.ID}, s.caller(ctx, in.Name))
}
