// Package trackerclient asks Tranche's tracker service over NATS: when are all my fanned-out events done?
//
//	trackers, err := trackerclient.New(nc, trackerclient.Config{Actor: "billing"})
//	batch, err := trackers.Open(ctx, trackerclient.BatchSettings{Owner: "billing", Key: "2026-11"})
//	added, err := trackers.Add(ctx, batch.ID, 20_000, "first")
//	for id := range added.IDs() {
//		publish(id.String(), …) // whoever has worked on it acknowledges the id, in any language
//	}
//	sealed, err := trackers.Seal(ctx, batch.ID)
//	…
//	acked, err := trackers.Ack(ctx, id)
//	if acked.Completed(id.Batch) { … } // this call, and no other, has completed the batch
//
// A batch has groups of up to 8192 items, and an item is a bit: a million of them take 125 kB, and no row each. Every
// call may be made again: a batch is opened once for an owner and a key, items are added once for a key, and an item
// that was acknowledged before stays so.
//
// # Guarantees
//
// An answer comes after the commit. Of all calls that acknowledge and seal exactly one is told that it completed the
// batch; when its answer is lost no one is, which is why the event on [CompletedSubject] is what to rely on: it is
// published at least once, under one id. A call that failed as a whole has changed nothing.
//
// # Not its job
//
// It keeps nothing and tries nothing again. Errors of the service are [*Error]; [Error.Temporary] says that the same
// call may succeed later.
//
// A [Client] is safe for concurrent use.
package trackerclient

import (
	"bytes"
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

// DefaultTimeout bounds a call whose context has no deadline.
const DefaultTimeout = 30 * time.Second

// Config sets a Client up. A zero field means its default.
type Config struct {
	Actor   string        // who asks, for the audit log of batches that are opened, sealed and deleted
	Timeout time.Duration // of a call whose context has no deadline; DefaultTimeout
}

// Client asks the service. It does not close its connection.
type Client struct {
	nc  *nats.Conn
	cfg Config
}

// New returns a client on a connection that may publish tranche.tracker.> and receives answers.
func New(nc *nats.Conn, cfg Config) (*Client, error) {
	if nc == nil {
		return nil, errors.New("trackerclient: a NATS connection is needed")
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("trackerclient: Config.Timeout is %s; it must be positive", cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	return &Client{nc: nc, cfg: cfg}, nil
}

// Open opens a batch, or finds the one that was opened before with this id, or for this owner and key.
func (c *Client) Open(ctx context.Context, set BatchSettings) (out BatchOpened, err error) {
	err = c.ask(ctx, OpenSubject, set, &out)
	return out, err
}

// Add adds items to an open batch, once for each key that is not empty.
func (c *Client) Add(ctx context.Context, batch string, items int64, key string) (out GroupsAdded, err error) {
	err = c.ask(ctx, AddSubject, AddRequest{batch, GroupSettings{items, key}}, &out)
	return out, err
}

// Ack acknowledges items of any batches as done.
func (c *Client) Ack(ctx context.Context, ids ...bitfield.ItemID) (out BatchesAcked, err error) {
	return c.Acknowledge(ctx, Acknowledgement{IDs: texts(ids)})
}

// Fail acknowledges items of any batches as failed permanently, with a code that says why.
func (c *Client) Fail(ctx context.Context, code string, ids ...bitfield.ItemID) (out BatchesAcked, err error) {
	return c.Acknowledge(ctx, Acknowledgement{IDs: texts(ids), Code: code})
}

// Acknowledge acknowledges items by their ids, and by ranges like batch:12:0-99, batch:12-40 (whole groups) and
// batch:all.
func (c *Client) Acknowledge(ctx context.Context, ack Acknowledgement) (out BatchesAcked, err error) {
	err = c.ask(ctx, AckSubject, AckRequest{Acknowledgement: ack}, &out)
	return out, err
}

// Seal says that no more items will come. It may be called again.
func (c *Client) Seal(ctx context.Context, batch string) (out BatchSealed, err error) {
	err = c.ask(ctx, SealSubject, BatchRequest{batch}, &out)
	return out, err
}

// Get returns a batch as it stands, with up to so many ranges of what is missing.
func (c *Client) Get(ctx context.Context, batch string, missing int) (out BatchView, err error) {
	err = c.ask(ctx, GetSubject, GetRequest{batch, missing}, &out)
	return out, err
}

// Missing returns a page of what is missing, after the value of Next of the one before.
func (c *Client) Missing(ctx context.Context, batch, after string, limit int) (out MissingPage, err error) {
	err = c.ask(ctx, MissingSubject, MissingRequest{batch, after, limit}, &out)
	return out, err
}

// List returns a page of batches, newest first.
func (c *Client) List(ctx context.Context, which ListRequest) (out BatchPage, err error) {
	err = c.ask(ctx, ListSubject, which, &out)
	return out, err
}

// Delete deletes a batch, whatever its state.
func (c *Client) Delete(ctx context.Context, batch string) (out BatchDeleted, err error) {
	err = c.ask(ctx, DeleteSubject, BatchRequest{batch}, &out)
	return out, err
}

// refusal is an answer that says no. It has no other member.
type refusal struct {
	Error *Error `json:"error"`
}

const refusalBegins = `{"error":`

func (c *Client) ask(ctx context.Context, subject string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("ask %s: %w", subject, err)
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
		return fmt.Errorf("ask %s: no tranche serve listens there: %w", subject, err)
	}
	if err != nil {
		return fmt.Errorf("ask %s: %w", subject, err)
	}
	if bytes.HasPrefix(reply.Data, []byte(refusalBegins)) {
		var no refusal
		if err := json.Unmarshal(reply.Data, &no); err == nil && no.Error != nil {
			return no.Error
		}
	}
	if err := json.Unmarshal(reply.Data, answer); err != nil {
		return fmt.Errorf("ask %s: the answer cannot be read: %w", subject, err)
	}
	return nil
}

func texts(ids []bitfield.ItemID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = id.String()
	}
	return all
}

// IDs returns the ids of the items that were added, in their order.
func (a *GroupsAdded) IDs() iter.Seq[bitfield.ItemID] {
	return func(yield func(bitfield.ItemID) bool) {
		first, err := bitfield.ParseItemID(a.FirstID)
		if err != nil {
			return // it did not come from the service
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

// Completed reports whether the call has completed a batch.
func (a *BatchesAcked) Completed(batch [16]byte) bool {
	text := bitfield.ItemID{Batch: batch}.String()
	return slices.Contains(a.CompletedBatches, text[:len(text)-len(":0:0")])
}

// AddRequest asks for items to be added, over NATS.
type AddRequest struct {
	Batch string `json:"batch"`
	GroupSettings
}

// AckRequest acknowledges items, over NATS. With a batch, ids and ranges are of that one only, and ranges may leave it
// out.
type AckRequest struct {
	Batch string `json:"batch,omitempty"`
	Acknowledgement
}

// BatchRequest is about one batch.
type BatchRequest struct {
	Batch string `json:"batch"`
}

// GetRequest asks for a batch, and for so many ranges of what is missing.
type GetRequest struct {
	Batch   string `json:"batch" path:"id" doc:"a batch's id, a UUID" example:"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"`
	Missing int    `json:"missing,omitempty" query:"missing" maximum:"10000" minimum:"0" doc:"pending ranges to include"`
}

// GroupsRequest asks for groups of a batch, from the one that follows After.
type GroupsRequest struct {
	Batch string `json:"batch"`
	After *int   `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// MissingRequest asks for what is missing, after an item like 12:8191.
type MissingRequest struct {
	Batch string `json:"batch" path:"id" doc:"a batch's id, a UUID" example:"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"`
	After string `json:"after,omitempty" query:"after" doc:"the value of next of the page before: an item like 12:8191"`
	Limit int    `json:"limit,omitempty" query:"limit" minimum:"1" maximum:"10000" default:"1000"`
}

// ListRequest asks for batches.
type ListRequest struct {
	Owner string `json:"owner,omitempty" query:"owner" maxLength:"200" doc:"only this one's"`
	State string `json:"state,omitempty" query:"state" enum:"open,sealed,completed,expired" doc:"only those in this state"`
	After string `json:"after,omitempty" query:"after" doc:"the value of next of the page before"`
	Limit int    `json:"limit,omitempty" query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

// Subjects are one for each operation: requests of core NATS, whose answers come after the commit.
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

// Subjects of the events, in the stream of all events.
const (
	CompletedSubject = "tranche.event.tracker.completed"
	ExpiredSubject   = "tranche.event.tracker.expired"
)

// HeaderActor says who asks, for the audit log.
const HeaderActor = "Tranche-Actor"

// What a call may bring at most.
const (
	MaxIDs       = 100_000       // of an acknowledgement
	MaxRanges    = 10_000        // also
	MaxItems     = 1_000_000_000 // of an addition
	MaxMissing   = 10_000        // ranges in an answer
	MaxPage      = 1000          // batches or groups in an answer
	MaxName      = 200           // characters of owners and keys
	MaxCode      = 64            // characters of codes
	GroupItems   = 8192          // of a full group
	DefaultLimit = 100           // of pages
)

// Code says what is wrong, for programs. The HTTP API has the same ones.
type Code string

// The codes.
const (
	CodeBadRequest   Code = "bad_request"    // the request cannot be read
	CodeBadSetting   Code = "bad_setting"    // a member's value is out of range
	CodeBadID        Code = "bad_id"         // a text is no id of an item, or of a batch
	CodeBadRange     Code = "bad_range"      // a text is no range
	CodeNothing      Code = "nothing_given"  // no item is named
	CodeTooMany      Code = "too_many_given" // more ids or ranges than a call may bring
	CodeZeroItems    Code = "zero_items"     // an addition of none
	CodeTooManyItems Code = "too_many_items" // an addition of more than a batch takes
	CodeNoBatch      Code = "no_such_batch"
	CodeNoGroup      Code = "no_such_group"     // the batch has no such group
	CodePastSize     Code = "index_past_size"   // the group has no such item
	CodeWrongBatch   Code = "wrong_batch"       // an id of another batch than the call is about
	CodeBatchTaken   Code = "batch_taken"       // the id belongs to another batch
	CodeKeyConflict  Code = "key_conflict"      // the key was used before, for something else
	CodeNotOpen      Code = "batch_not_open"    // an addition to a batch that takes no more
	CodeEnded        Code = "batch_ended"       // the batch was cancelled, or has expired
	CodeWebhook      Code = "webhook_refused"   // the operator's file does not allow it
	CodeTooLarge     Code = "answer_too_large"  // ask for less at once
	CodeBusy         Code = "too_many_requests" // ask again
	CodeUnavailable  Code = "unavailable"       // PostgreSQL cannot be reached, or is too slow: ask again
	CodeInternal     Code = "internal"          // the log of the server says what
)

// Error is an answer that says no. The call has changed nothing, unless the code is [CodeUnavailable] or
// [CodeInternal]: then it may have, and can be made again anyway.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`         // what is wrong and what helps, for people
	Place   string `json:"place,omitempty"` // like ids[17]: the member that is meant
	Value   string `json:"value,omitempty"` // what stands there
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
