package serve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// partTimeout limits the wait for one answer; partAway, that for any, through restarts of nodes and servers.
	partTimeout = 5 * time.Second
	partAway    = 30 * time.Second
	partPause   = 50 * time.Millisecond // the first one between two attempts; doubled up to a second
)

// Part returns the named part. One that the request only refers to is fetched, and is exactly what it refers to.
func (i Item) Part(ctx context.Context, name string) (wire.Part, bool, error) {
	part, there := i.Parts.Find(name)
	if part.Ref == nil {
		return part, there, nil
	}
	data, err := i.fetch(ctx, name, part.Ref)
	return wire.Part{Data: data, ContentType: part.ContentType}, true, err
}

func (i Item) fetch(ctx context.Context, name string, ref *wire.PartRef) ([]byte, error) {
	query := wire.PartQuery{Slice: i.Job.Request.Root, Ordinal: i.Ordinal, Step: name, PartRef: *ref}
	data := make([]byte, 0, ref.Bytes)
	pauses, came := backoff.Exponential{First: partPause, Longest: time.Second}, time.Now()
	for query.From < ref.Bytes {
		some, err := i.Job.askPart(ctx, query)
		bad, _ := errors.AsType[*wire.SlotError](err)
		switch {
		case err == nil && int64(len(some)) <= ref.Bytes-query.From && len(some) > 0:
			data = append(data, some...)
			query.From, came = int64(len(data)), time.Now()
			pauses.Reset()
			continue
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case bad != nil && bad.Code != wire.CodePartUnavailable:
			return nil, bad
		case time.Since(came) > partAway:
			return nil, wire.Retry(wire.CodePartUnavailable, "part %.80q has %d bytes; no node sent those from byte %d on: %v",
				name, ref.Bytes, query.From, err)
		}
		if err := pauses.Wait(ctx); err != nil {
			return nil, err
		}
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != ref.SHA256 {
		return nil, wire.Retry(wire.CodePartGone, "part %.80q has changed since the request", name)
	}
	return data, nil
}

// askPart asks once. A node's error is a *wire.SlotError.
func (j *Job) askPart(ctx context.Context, query wire.PartQuery) ([]byte, error) {
	body, err := json.Marshal(query)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	subject := wire.PartSubject(j.Endpoint)
	var msg *nats.Msg
	err = stream.During(ctx, j.Host.NC, func(ctx context.Context) (err error) {
		msg, err = j.Host.NC.RequestWithContext(ctx, subject, body)
		return err
	}, subject)
	if err != nil {
		return nil, err
	}
	if code := msg.Header.Get(wire.HeaderErrorCode); code != "" {
		return nil, wire.NewSlotError(code, msg.Header.Get(wire.HeaderError), code != wire.CodeBadRequest)
	}
	return msg.Data, nil
}
