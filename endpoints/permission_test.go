package endpoints

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// guarded is a server with one user of everything and one with the permissions given.
func guarded(publish, subscribe []string) string {
	quoted := func(list []string) string { return `"` + strings.Join(list, `", "`) + `"` }
	return fmt.Sprintf(`
		jetstream: {}
		authorization: { users: [
			{ user: all, password: p }
			{ user: svc, password: p, permissions: { publish: { allow: [%s] }, subscribe: { allow: [%s] } } }
		] }`, quoted(publish), quoted(subscribe))
}

func plainService(endpoint string) (publish, subscribe []string) {
	return []string{
			"$JS.API.CONSUMER.INFO.TRANCHE_WORK." + endpoint, "$JS.API.CONSUMER.MSG.NEXT.TRANCHE_WORK." + endpoint,
			"$JS.API.CONSUMER.CREATE.TRANCHE_WORK." + endpoint + ".tranche.work." + endpoint,
			"$JS.ACK.TRANCHE_WORK." + endpoint + ".*.*.*.*.*", "$JS.ACK.*.*.TRANCHE_WORK." + endpoint + ".*.*.*.*.>",
			"$JS.API.CONSUMER.INFO.TRANCHE_WORK." + endpoint + "+",
			"$JS.API.CONSUMER.MSG.NEXT.TRANCHE_WORK." + endpoint + "+",
			"$JS.API.CONSUMER.CREATE.TRANCHE_WORK." + endpoint + "+.tranche.work." + endpoint + "+",
			"$JS.ACK.TRANCHE_WORK." + endpoint + "+.*.*.*.*.*", "$JS.ACK.*.*.TRANCHE_WORK." + endpoint + "+.*.*.*.*.>",
			"tranche.reply." + endpoint, "_INBOX_all.>",
		}, []string{
			"_INBOX_svc.>", "$SRV.>", "tranche.status." + endpoint, wire.DirectSubject(endpoint),
		}
}

// setupGuarded is a bundle on a server with permissions. Its own connection may do everything.
func setupGuarded(t *testing.T, publish, subscribe []string) (*bundle, *testenv.GuardedNATS) {
	t.Helper()
	server := testenv.NATSByConfig(t, guarded(publish, subscribe))
	return newBundle(t).over(server.Conn(t, "all", "p", "_INBOX_all")), server
}

func without(list []string, subject string) []string {
	var left []string
	for _, s := range list {
		if s != subject {
			left = append(left, s)
		}
	}
	return left
}

// Each permission taken away is named in the log and in what Denied returns, and the work is done once it is granted.
func TestEachMissingPermissionIsNamedAndServiceRecovers(t *testing.T) {
	t.Parallel()
	publish, subscribe := plainService("work")
	for _, missing := range []string{
		"$JS.API.CONSUMER.INFO.TRANCHE_WORK.work", "$JS.API.CONSUMER.MSG.NEXT.TRANCHE_WORK.work",
		"$JS.ACK.TRANCHE_WORK.work.*.*.*.*.*", "tranche.reply.work", "_INBOX_svc.>", "$SRV.>", "tranche.status.work",
		"tranche.direct.work",
		"$JS.API.CONSUMER.CREATE.TRANCHE_WORK.work.tranche.work.work",
	} {
		t.Run(missing, func(t *testing.T) {
			t.Parallel()
			b, server := setupGuarded(t, without(publish, missing), without(subscribe, missing))
			svc, err := New(server.Conn(t, "svc", "p", "_INBOX_svc"), Config{Name: "tester", Log: b.log, DrainTimeout: patience})
			check(t, err)
			check(t, HandleEach(svc, "work", func(_ context.Context, in map[string]int) (int, error) { return in["n"], nil }))
			b.Run(svc)
			meta := b.ask("work", numbers(3))
			w := testenv.NewWatch(t)
			grant := strings.TrimSuffix(missing, ".tranche.work.work") // the message names all that is created
			eventually(t, "the log names the subject", func() bool { return b.names(grant) })
			if missing == "tranche.reply.work" { // it can fetch and not reply: it listens, and its status says what it misses
				eventually(t, "it is discovered with its reason", func() bool {
					found := testenv.Must(wire.Discover(b.ctx, b.nc, 100*time.Millisecond))(t)
					return len(found) == 1 && strings.Contains(found[0].Reason, "publish to "+missing)
				})
			}
			if took := w.Ran(); took > outlastsStalls { // it takes two seconds; a denial that is not heard is never told
				t.Errorf("it took %s to tell", took)
			}
			server.Reload(t, guarded(publish, subscribe))
			testenv.Same(t, len(b.collect(1)[meta.Slice].slots), 3, "slots")
			eventually(t, "nothing is denied any more", func() bool {
				present := svc.host.Outbox.Perms.Denied()
				// An acknowledgement is not answered: it is denied until it has not been for a while.
				return len(present) == 0 && svc.Stats()[0].Reason == "" || strings.HasPrefix(missing, "$JS.ACK")
			})
		})
	}
}

// names reports whether the log says that a subject is denied, and what to do, or that a node does without it.
func (b *bundle) names(subject string) bool {
	for _, entry := range b.logged.FilterMessageSnippet("denies").All() {
		text := fmt.Sprint(entry.ContextMap()["error"])
		if strings.Contains(text, subject) && strings.Contains(text, "docs/security.md") {
			return true
		}
	}
	for _, entry := range b.logged.FilterMessageSnippet("a node makes this service's consumer").All() {
		if strings.Contains(fmt.Sprint(entry.ContextMap()["subject"]), subject) {
			return true
		}
	}
	return false
}

func TestDeniedPublishFailsAtOnce(t *testing.T) {
	t.Parallel()
	b, server := setupGuarded(t, []string{"nothing"}, []string{"_INBOX_svc.>"})
	nc := server.Conn(t, "svc", "p", "_INBOX_svc")
	js := testenv.Must(jetstream.New(nc))(t)
	w := testenv.NewWatch(t)
	err := serve.NewOutbox(nc, js).Publish(b.ctx, &nats.Msg{Subject: "tranche.reply.x"})
	denied := stream.PermissionError{Op: stream.OpPublish, Subject: "tranche.reply.x"}
	testenv.Same(t, *testenv.As[*stream.PermissionError](t, err, "a reply"), denied, "what is denied")
	// What is denied for a second fails. What is not known to be denied is tried for half a minute.
	if took := w.Ran(); !errors.Is(err, nats.ErrPermissionViolation) || took > outlastsStalls {
		t.Errorf("after %s: %v", took, err)
	}
}

func TestPermissionsKeepTheHandlerOfTheUser(t *testing.T) {
	t.Parallel()
	_, server := setupGuarded(t, []string{"nothing"}, []string{"nothing"})
	nc := server.Conn(t, "svc", "p", "")
	heard := make(chan error, 10)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { heard <- err })
	p := stream.PermissionsOf(nc)
	testenv.Same(t, stream.PermissionsOf(nc), p, "the permissions of the connection")
	check(t, nc.Publish("tranche.work.x", nil))
	check(t, nc.Publish("private", nil))
	for range 2 {
		testenv.Is(t, await(t, "error of the connection", heard), nats.ErrPermissionViolation, "heard")
	}
	if got := p.Denied(); len(got) != 1 || got[0].Subject != "tranche.work.x" {
		t.Errorf("denied are %v", got)
	}
}
