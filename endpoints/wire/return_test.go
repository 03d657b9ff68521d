package wire

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestReturnIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for _, r := range []Return{
		{},
		{Asker: "statement", Callee: "accounts", Stage: 1},
		{Asker: "a-b_C", Callee: "x", Stage: 63, Request: 8191},
		{Asker: "web", Callee: "accounts", Call: "Zk3"},
	} {
		got, err := ParseReturn(r.String())
		if err != nil || got != r {
			t.Errorf("%q is read as %+v, %v", r.String(), got, err)
		}
	}
}

func TestReturnTakesNothingElse(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{
		"tranche.reply.accounts", "tranche.work.accounts", "tranche.stage.a.0.0.b", "tranche.stage.a.01.0.b",
		"tranche.stage.a.1.0", "tranche.stage.a.1.0.b.c", "tranche.stage.a.1.8192.b", "tranche.stage.a.64.0.b",
		"tranche.stage.*.1.0.b", "tranche.stage.a.1.0.>", "tranche.call.a.b", "tranche.call.a..b", "tranche.call.a.b.c.d",
		"$JS.API.STREAM.DELETE.TRANCHE_WORK", "_INBOX.x", "tranche.call.a.b.c ", "tranche.call.a.\r\nb.c",
	} {
		if got, err := ParseReturn(subject); err == nil {
			t.Errorf("%q is taken for %+v", subject, got)
		}
	}
}

func FuzzParseReturn(f *testing.F) {
	f.Add("tranche.stage.statement.1.0.accounts")
	f.Add("tranche.call.web.Zk3.accounts")
	f.Fuzz(func(t *testing.T, subject string) {
		if r, err := ParseReturn(subject); err == nil && r.String() != subject {
			t.Fatalf("%q is read as %+v", subject, r)
		}
	})
}

// FuzzReadMeta changes one header of a good request.
func FuzzReadMeta(f *testing.F) {
	for _, name := range []string{HeaderStep, HeaderAttempt, HeaderDeliveries, HeaderRequeued} {
		f.Add(name, "2147483648")
	}
	f.Add(HeaderStack, "statement:1")
	f.Add(HeaderReplyTo, "tranche.stage.statement.1.0.accounts")
	f.Add(HeaderMode, "single")
	f.Add(HeaderOrigin, "a\x00\xff")
	good := newMeta()
	f.Fuzz(func(t *testing.T, name, value string) {
		m, err := ReadMeta(with(good, name, value))
		if err != nil {
			if _, ok := errors.AsType[*MalformedError](err); !ok {
				t.Fatalf("%s %q: %v", name, value, err)
			}
			return
		}
		if m.Step < 0 || m.Attempt < 1 || m.Generation < 1 || m.Deliveries < 1 || m.Deliveries > MaxDeliver ||
			m.Requeued < 0 || m.Stack.Depth() > MaxStack || len(m.Origin) > MaxServiceName || !utf8.ValidString(m.Origin) {
			t.Fatalf("%s %q is read as %+v", name, value, m)
		}
	})
}

func TestStack(t *testing.T) {
	t.Parallel()
	s := Stack("").Push("statement", 1).Push("accounts", 2)
	if s != "statement:1,accounts:2" || s.Depth() != 2 {
		t.Errorf("got %q of depth %d", s, s.Depth())
	}
	if got, err := ParseStack(string(s)); err != nil || got != s {
		t.Errorf("%q is read as %q, %v", s, got, err)
	}
	deep := strings.TrimSuffix(strings.Repeat("a:1,", MaxStack), ",")
	if got, err := ParseStack(deep); err != nil || got.Depth() != MaxStack {
		t.Errorf("a stack of %d: %v", MaxStack, err)
	}
	for _, bad := range []string{
		deep + ",a:1", "a", "a:", ":1", "a:x", "a:1,", "a:64", "a:1\n", strings.Repeat(",", 1<<20),
	} {
		if got, err := ParseStack(bad); err == nil {
			t.Errorf("%.40q is taken for %q", bad, got)
		}
	}
}
