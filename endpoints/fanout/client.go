package fanout

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
		return nil, errors.New("fanout: a NATS connection is needed")
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("fanout: Config.Timeout is %s; it must be positive", cfg.Timeout)
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

// Fail acknowledges items of any batches as failed for good, with a code that says why.
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
