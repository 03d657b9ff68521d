package streams_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
)

// Two databases on one NATS account would take each other's replies. A node of the second does not start; one that runs
// ends when the streams become another's; and streams that say nothing are the leader's to mark.
func TestStreamsAreOneInstallations(t *testing.T) {
	t.Parallel()
	b := setupStreams(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	node := func(store *database.DB) (n *orchestrator.Node, ended <-chan error) {
		t.Helper()
		cfg := nodetest.Config(t)
		cfg.StreamsInterval, cfg.ReconcileInterval = 10*time.Millisecond, 10*time.Millisecond
		n, err := orchestrator.New(store, testenv.Conn(t, b.NS), cfg)
		if err != nil {
			t.Fatal(err)
		}
		end := make(chan error, 1)
		go func() { end <- n.Run(ctx) }()
		return n, end
	}
	wantStranger := func(what string, ended <-chan error) {
		t.Helper()
		err := <-ended
		if _, ok := errors.AsType[*stream.StrangerError](err); !ok || !strings.Contains(err.Error(), wire.StreamDead) ||
			!strings.Contains(err.Error(), "own NATS account") {
			t.Errorf("%s ended with %v; want that the streams are another installation's, and the remedy", what, err)
		}
	}
	ours, ended := node(b.Store)
	nodetest.WantReady(t, ours)
	made := b.stream(wire.StreamWork).Created

	other := testenv.Pool(t)
	if _, err := other.Exec(t.Context(), `UPDATE database_mark SET lineage = gen_random_uuid()`); err != nil {
		t.Fatal(err)
	}
	_, refused := node(database.New(other))
	wantStranger("a node of another database", refused)
	if again := b.stream(wire.StreamWork).Created; !again.Equal(made) {
		t.Error("it replaced the streams")
	}

	const key = "tranche_installation"
	mark := func(edit func(map[string]string)) {
		t.Helper()
		config := b.stream(wire.StreamWork).Config
		edit(config.Metadata)
		if _, err := b.js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	is := b.stream(wire.StreamWork).Config.Metadata[key]
	mark(func(m map[string]string) { delete(m, key); m["note"] = "by hand" })
	b.eventually("the leader has marked its stream", func() bool {
		return b.stream(wire.StreamWork).Config.Metadata[key] == is
	})
	if note := b.stream(wire.StreamWork).Config.Metadata["note"]; note != "by hand" {
		t.Errorf("the note of the stream is now %q", note)
	}
	select {
	case err := <-ended:
		t.Errorf("the first node ended: %v", err)
	default:
	}
	mark(func(m map[string]string) { m[key] = "another" })
	wantStranger("the node that ran", ended)
}
