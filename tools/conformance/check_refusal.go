package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func refusalChecks() []check {
	const section = "Acknowledgement"
	return []check{
		{"bad-body", "an unreadable body: a failure bad_request, then +TERM", section, 0, checkBadBody},
		{"bad-headers", "unreadable headers: +TERM", section, 0, checkBadHeaders},
		{"version", "another version: handed back with a delay, for an instance that speaks it", section, 0, checkVersion},
	}
}

func checkBadBody(ctx context.Context, n *node) error {
	for _, bad := range []struct {
		what  string
		spoil func(*request)
	}{
		{"JSON cut short", func(r *request) { r.body = r.body[:len(r.body)-3] }},
		{"nothing", func(r *request) { r.body = nil }},
		{"no items", func(r *request) { r.body = []byte(`{"items":[]}`) }},
		{"an item without i", func(r *request) { r.body = []byte(`{"items":[{"k":"a","d":1}]}`) }},
		{"an unknown encoding", func(r *request) { r.header.Set(wire.HeaderEncoding, "gzip") }},
		{"zstd that is none", func(r *request) { r.header.Set(wire.HeaderEncoding, "zstd") }},
	} {
		r := n.sample(2)
		bad.spoil(r)
		if err := about("a body with "+bad.what, n.refused(ctx, r)); err != nil {
			return err
		}
	}
	return nil
}

// about adds to a mismatch what it is about.
func about(what string, err error) error {
	if m, ok := errors.AsType[*mismatch](err); ok {
		return &mismatch{m.expected + ", for " + what, m.got}
	}
	return err
}

// refused asks and returns an error unless the body is said to be unreadable and the request is removed.
func (n *node) refused(ctx context.Context, r *request) error {
	const expected = "a failure bad_request that is not retryable, with Tranche-Final: 0"
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	f := a.failure()
	if f == nil || f.Code != wire.CodeBadRequest || a.final() != 0 || f.Retry && a.inBody() {
		return differs(expected, "%s", a)
	}
	return n.expectSettled(ctx, r, ackRemove)
}

// inBody reports whether the failure stands in a body, which can say that it is not retryable.
func (a *answer) inBody() bool { return len(a.messages) > 0 && len(a.messages[0].data) > 0 }

func checkBadHeaders(ctx context.Context, n *node) error {
	for _, bad := range [][2]string{
		{wire.HeaderSlice, ""}, {wire.HeaderSlice, "17"}, {wire.HeaderRun, "not-a-uuid"},
		{wire.HeaderStep, "first"}, {wire.HeaderAttempt, "0"}, {wire.HeaderGeneration, "-1"},
		{wire.HeaderMode, "neither"}, {wire.HeaderVersion, ""},
	} {
		r := n.sample(1)
		if r.header.Set(bad[0], bad[1]); bad[1] == "" {
			r.header.Del(bad[0])
		}
		if err := n.ask(ctx, r); err != nil {
			return err
		}
		ack, err := n.settled(ctx, r)
		if err != nil {
			return err
		}
		if ack.kind != ackRemove {
			return differs(fmt.Sprintf("+TERM for a request with %s %q", bad[0], bad[1]), "%s", ack.text)
		}
	}
	return nil
}

func checkVersion(ctx context.Context, n *node) error {
	const expected = `-NAK {"delay":10000000000}, which gives other instances the time, and no reply`
	r := n.sample(1)
	r.header.Set(wire.HeaderVersion, "2")
	r.body = []byte("who knows what version 2 looks like")
	if err := n.ask(ctx, r); err != nil {
		return err
	}
	ack, err := n.settled(ctx, r)
	if err != nil {
		return err
	}
	var back struct{ Delay time.Duration }
	_ = json.Unmarshal([]byte(strings.TrimPrefix(ack.text, ackBack)), &back) // what it is not has no delay
	if ack.kind != ackBack || back.Delay < time.Second {
		return differs(expected, "%s", ack.text)
	}
	if a := n.now(r); len(a.messages) > 0 {
		return differs(expected, "%s", a)
	}
	return nil
}

// now returns what has come of the reply to a request.
func (n *node) now(r *request) *answer {
	n.journal.mu.Lock()
	defer n.journal.mu.Unlock()
	return &answer{n.journal.of(r.slice())}
}
