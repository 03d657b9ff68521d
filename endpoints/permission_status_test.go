package endpoints

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// A service that can fetch and not reply listens; its status says what it misses, until it has it.
func TestStatusNamesWhatIsDenied(t *testing.T) {
	t.Parallel()
	publish, subscribe := plainService("work")
	b, server := setupGuarded(t, without(publish, "tranche.reply.work"), subscribe)
	svc, err := New(server.Conn(t, "svc", "p", "_INBOX_svc"), Config{Name: "tester", Log: b.log, DrainTimeout: patience})
	check(t, err)
	check(t, HandleEach(svc, "work", func(_ context.Context, in map[string]int) (int, error) { return in["n"], nil }))
	b.Run(svc)
	b.ask("work", numbers(1))
	const want = "publish to tranche.reply.work"
	eventually(t, "the status says what is denied", func() bool {
		return strings.Contains(svc.Stats()[0].Reason, want)
	})
	eventually(t, "it is discovered with its reason", func() bool {
		found, err := wire.Discover(b.ctx, b.nc, 100*time.Millisecond)
		check(t, err)
		return len(found) == 1 && strings.Contains(found[0].Reason, want)
	})
	eventually(t, "the log names it", func() bool { return b.names("tranche.reply.work") }) // it stays until then
	server.Reload(t, guarded(publish, subscribe))
	b.collect(1)
	eventually(t, "the reason is gone", func() bool { return svc.Stats()[0].Reason == "" })
}
