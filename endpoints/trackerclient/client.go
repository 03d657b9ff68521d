// Package trackerclient is a client, over NATS, for Tranche's tracker: it reports when all fanned-out events are
// done.
//
//	trackers, err := trackerclient.New(nc, trackerclient.Config{Actor: "billing"})
//	batch, err := trackers.Open(ctx, trackerclient.BatchSettings{Owner: "billing", Key: "2026-11"})
//	added, err := trackers.Add(ctx, batch.ID, 20_000, "first")
//	for id := range added.IDs() {
//		publish(id.String(), …) // the consumer acknowledges the ID, in any language
//	}
//	sealed, err := trackers.Seal(ctx, batch.ID)
//	…
//	acked, err := trackers.Ack(ctx, id)
//	if acked.Completed(id.Batch) { … } // true for exactly one call
//
// A batch has groups of up to 8192 items, and an item is a bit: a million items take 125 kB, not a row each. All
// calls may be repeated: a batch is opened once per owner and key, items are added once per key, and an acknowledged
// item stays so.
//
// Answers are sent after the commit. Exactly one call reports that it completed the batch; its answer may be lost, so
// rely on the event on [CompletedSubject], which is published at least once under one ID. A failed call has changed
// nothing, except as [Error] says.
//
// The client has no state and does not retry. Errors of the service are [*Error]; [Error.Temporary] reports whether
// the same call may succeed later. A [Client] is safe for concurrent use.
package trackerclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/bitfield"
)

// DefaultTimeout is the default of Config.Timeout.
const DefaultTimeout = 30 * time.Second

// Config configures a Client. Zero fields mean defaults.
type Config struct {
	Actor   string        // the caller, for the audit log of batches opened, sealed and deleted
	Timeout time.Duration // of calls whose context has no deadline; default DefaultTimeout
}

// Client calls the tracker. It does not close its connection.
type Client struct {
	nc  *nats.Conn
	cfg Config
}

// New returns a client. The connection must be allowed to publish to tranche.tracker.> and to subscribe to its inbox.
func New(nc *nats.Conn, cfg Config) (*Client, error) {
	if nc == nil {
		return nil, errors.New("trackerclient: a NATS connection is needed")
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("trackerclient: Config.Timeout is %s; it must be positive", cfg.Timeout)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	return &Client{nc: nc, cfg: cfg}, nil
}

// Open opens a batch, or returns the one already opened with this ID, or this owner and key.
func (c *Client) Open(ctx context.Context, set BatchSettings) (BatchOpened, error) {
	return ask[BatchOpened](ctx, c, OpenSubject, set)
}

// Add adds items to an open batch, once per non-empty key.
func (c *Client) Add(ctx context.Context, batch string, items int64, key string) (GroupsAdded, error) {
	return ask[GroupsAdded](ctx, c, AddSubject, AddRequest{batch, GroupSettings{items, key}})
}

// Ack acknowledges items of any batches as done.
func (c *Client) Ack(ctx context.Context, ids ...bitfield.ItemID) (BatchesAcked, error) {
	return c.Acknowledge(ctx, Acknowledgement{IDs: texts(ids)})
}

// Fail acknowledges items of any batches as permanently failed, with a code.
func (c *Client) Fail(ctx context.Context, code string, ids ...bitfield.ItemID) (BatchesAcked, error) {
	if code == "" {
		return BatchesAcked{}, &Error{Code: CodeBadSetting, Place: "code", Message: "it is empty; items without one are done"}
	}
	return c.Acknowledge(ctx, Acknowledgement{IDs: texts(ids), Code: FailCode(code)})
}

// Acknowledge acknowledges items by ID and by range: batch:12:0-99, batch:12-40 (whole groups) or batch:all.
func (c *Client) Acknowledge(ctx context.Context, ack Acknowledgement) (BatchesAcked, error) {
	return ask[BatchesAcked](ctx, c, AckSubject, AckRequest{Acknowledgement: ack})
}

// Seal closes a batch to new items. It may be repeated.
func (c *Client) Seal(ctx context.Context, batch string) (BatchSealed, error) {
	return ask[BatchSealed](ctx, c, SealSubject, BatchRequest{batch})
}

// Get returns a batch with up to missing ranges of pending items.
func (c *Client) Get(ctx context.Context, batch string, missing int) (BatchView, error) {
	return ask[BatchView](ctx, c, GetSubject, GetRequest{batch, missing})
}

// Missing returns a page of pending ranges; after is the previous page's Next.
func (c *Client) Missing(ctx context.Context, batch, after string, limit int) (MissingPage, error) {
	return ask[MissingPage](ctx, c, MissingSubject, MissingRequest{batch, after, limit})
}

// List returns a page of batches, newest first.
func (c *Client) List(ctx context.Context, which ListRequest) (BatchPage, error) {
	return ask[BatchPage](ctx, c, ListSubject, which)
}

// Delete deletes a batch in any state.
func (c *Client) Delete(ctx context.Context, batch string) (BatchDeleted, error) {
	return ask[BatchDeleted](ctx, c, DeleteSubject, BatchRequest{batch})
}

// refusal is an error answer, without other members.
type refusal struct {
	Error *Error `json:"error"`
}

const refusalBegins = `{"error":`

func ask[Answer any](ctx context.Context, c *Client, subject string, request any) (answer Answer, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return answer, fmt.Errorf("ask %s: %w", subject, err)
	}
	if _, set := ctx.Deadline(); !set {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
	}
	msg := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	if c.cfg.Actor != "" {
		msg.Header.Set(HeaderActor, c.cfg.Actor)
	}
	reply, err := c.nc.RequestMsgWithContext(ctx, msg)
	if errors.Is(err, nats.ErrNoResponders) {
		return answer, fmt.Errorf("ask %s: no tranche serve listens there: %w", subject, err)
	}
	if err != nil {
		return answer, fmt.Errorf("ask %s: %w", subject, err)
	}
	if bytes.HasPrefix(reply.Data, []byte(refusalBegins)) {
		var no refusal
		if err := json.Unmarshal(reply.Data, &no); err == nil && no.Error != nil {
			return answer, no.Error
		}
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return answer, fmt.Errorf("ask %s: the answer cannot be read: %w", subject, err)
	}
	return answer, nil
}

func texts(ids []bitfield.ItemID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = id.String()
	}
	return all
}

// IDs returns the IDs of the added items, in order.
func (a *GroupsAdded) IDs() iter.Seq[bitfield.ItemID] {
	return func(yield func(bitfield.ItemID) bool) {
		first, err := bitfield.ParseItemID(a.FirstID)
		if err != nil {
			return // not from the service
		}
		for n := range a.Items {
			id := bitfield.ItemID{
				Batch: first.Batch, Group: a.FirstGroup + int(n/GroupItems), Index: int(n % GroupItems),
			}
			if !yield(id) {
				return
			}
		}
	}
}

// Completed reports whether this call completed a batch.
func (a *BatchesAcked) Completed(batch [16]byte) bool {
	text := bitfield.ItemID{Batch: batch}.String()
	return slices.Contains(a.CompletedBatches, text[:len(text)-len(":0:0")])
}

// AddRequest is the message on AddSubject.
type AddRequest struct {
	Batch string `json:"batch"`
	GroupSettings
}

// AckRequest is the message on AckSubject. Batch, if set, applies to ranges without one; all must be of that batch.
type AckRequest struct {
	Batch string `json:"batch,omitempty"`
	Acknowledgement
}

// BatchRequest names one batch.
type BatchRequest struct {
	Batch string `json:"batch"`
}

// GetRequest is the message on GetSubject.
type GetRequest struct {
	Batch   string `json:"batch" path:"id" doc:"a batch's id, a UUID" example:"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"`
	Missing int    `json:"missing,omitempty" query:"missing" maximum:"10000" minimum:"0" doc:"pending ranges to include"`
}

// GroupsRequest is the message on GroupsSubject; groups follow After.
type GroupsRequest struct {
	Batch string `json:"batch"`
	After *int   `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// MissingRequest is the message on MissingSubject; After is an item like 12:8191.
type MissingRequest struct {
	Batch string `json:"batch" path:"id" doc:"a batch's id, a UUID" example:"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"`
	After string `json:"after,omitempty" query:"after" doc:"the value of next of the page before: an item like 12:8191"`
	Limit int    `json:"limit,omitempty" query:"limit" minimum:"1" maximum:"10000" default:"1000"`
}

// ListRequest is the message on ListSubject.
type ListRequest struct {
	Owner string `json:"owner,omitempty" query:"owner" maxLength:"200" doc:"only this one's"`
	State string `json:"state,omitempty" query:"state" enum:"open,sealed,completed,expired" doc:"only those in this state"`
	After string `json:"after,omitempty" query:"after" doc:"the value of next of the page before"`
	Limit int    `json:"limit,omitempty" query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

// Subjects of the operations: core NATS requests, answered after the commit.
const (
	SubjectPrefix  = "tranche.tracker."
	OpenSubject    = SubjectPrefix + "open"
	AddSubject     = SubjectPrefix + "add"
	AckSubject     = SubjectPrefix + "ack"
	SealSubject    = SubjectPrefix + "seal"
	GetSubject     = SubjectPrefix + "get"
	GroupsSubject  = SubjectPrefix + "groups"
	MissingSubject = SubjectPrefix + "missing"
	ListSubject    = SubjectPrefix + "list"
	DeleteSubject  = SubjectPrefix + "delete"
)

// Subjects of events, in the event stream.
const (
	CompletedSubject = "tranche.event.tracker.completed"
	ExpiredSubject   = "tranche.event.tracker.expired"
)

// HeaderActor names the caller for the audit log.
const HeaderActor = "Tranche-Actor"

// Limits of a call.
const (
	MaxIDs       = 100_000       // per acknowledgement
	MaxRanges    = 10_000        // per acknowledgement
	MaxItems     = 1_000_000_000 // per addition
	MaxMissing   = 10_000        // ranges per answer
	MaxPage      = 1000          // batches or groups per answer
	MaxName      = 200           // characters of owners and keys
	MaxCode      = 64            // characters of codes
	GroupItems   = 8192          // per full group
	DefaultLimit = 100           // of pages
)

// Code is the code of an Error, the same as in the HTTP API.
type Code string

// Codes of an Error.
const (
	CodeBadRequest   Code = "bad_request"    // the request cannot be read
	CodeBadSetting   Code = "bad_setting"    // a value is not allowed
	CodeBadID        Code = "bad_id"         // not an item or batch ID
	CodeBadRange     Code = "bad_range"      // not a range
	CodeNothing      Code = "nothing_given"  // no item is named
	CodeTooMany      Code = "too_many_given" // more IDs or ranges than allowed
	CodeZeroItems    Code = "zero_items"     // nothing to add
	CodeTooManyItems Code = "too_many_items" // more items than a batch can have
	CodeNoBatch      Code = "no_such_batch"
	CodeNoGroup      Code = "no_such_group"     // the batch has no such group
	CodePastSize     Code = "index_past_size"   // the group has no such item
	CodeWrongBatch   Code = "wrong_batch"       // an ID of another batch than the call's
	CodeBatchTaken   Code = "batch_taken"       // the ID belongs to another batch
	CodeKeyConflict  Code = "key_conflict"      // the key was used with other settings
	CodeNotOpen      Code = "batch_not_open"    // the batch is closed to new items
	CodeEnded        Code = "batch_ended"       // the batch was cancelled or has expired
	CodeWebhook      Code = "webhook_refused"   // the operator's file does not allow it
	CodeTooLarge     Code = "answer_too_large"  // request less at a time
	CodeBusy         Code = "too_many_requests" // retry later
	CodeUnavailable  Code = "unavailable"       // PostgreSQL is unavailable or slow; retry later
	CodeInternal     Code = "internal"          // see the server's log
)

// Error is the service's refusal. The call changed nothing, except possibly with [CodeUnavailable] and
// [CodeInternal], where it can safely be repeated.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`         // problem and remedy, human-readable
	Place   string `json:"place,omitempty"` // the member concerned, like ids[17]
	Value   string `json:"value,omitempty"` // its value
}

func (e *Error) Error() string {
	if e.Place == "" {
		return e.Message
	}
	return fmt.Sprintf("%s: %s", e.Place, e.Message)
}

// Temporary reports whether the same call may succeed later.
func (e *Error) Temporary() bool {
	return e.Code == CodeBusy || e.Code == CodeUnavailable || e.Code == CodeInternal
}
