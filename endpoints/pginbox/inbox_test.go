package pginbox_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/pginbox"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestNewValidates(t *testing.T) {
	t.Parallel()
	pool := testenv.Connect(t, testenv.EmptyDatabase(t))
	if _, err := pginbox.New(nil, pginbox.Config{}); err == nil {
		t.Error("a nil pool was taken")
	}
	for _, table := range []string{"a b", "a.b.c", `a"b`, "1a", strings.Repeat("x", 51), "a.", "täble"} {
		if _, err := pginbox.New(pool, pginbox.Config{Table: table}); err == nil {
			t.Errorf("table %q was taken", table)
		}
	}
}

func TestCreateInASchemaByManyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`CREATE SCHEMA "Ledger"`)
	inbox := testenv.Must(pginbox.New(b.pool, pginbox.Config{Table: "Ledger.Seen"}))(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := inbox.Create(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	b.inbox = inbox
	b.serve(book)
	first := b.kit.Send("book", items(2)...)
	same(t, first, b.kit.Redeliver(first.Request))
	if n := b.count(`SELECT count(*) FROM "Ledger"."Seen"`); n != 2 || b.remembered() != 0 {
		t.Errorf("%d rows in the table", n)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.serve(book)
	old := b.kit.Send("book", items(3)...)
	b.exec(`UPDATE tranche_inbox SET at = at - interval '40 days'`)
	recent := b.kit.Send("book", items(2)...)
	if _, err := b.inbox.Prune(t.Context(), -time.Hour); err == nil {
		t.Error("a negative age was taken")
	}
	n, err := b.inbox.Prune(t.Context(), 30*24*time.Hour)
	check(t, err)
	if n != 3 || b.remembered() != 2 {
		t.Errorf("%d pruned, %d left", n, b.remembered())
	}
	b.kit.Redeliver(recent.Request)
	b.kit.Redeliver(old.Request) // done again: its memory is gone
	if got := b.written(); got != 8 {
		t.Errorf("%d effects", got)
	}
	n, err = b.inbox.Prune(t.Context(), 0)
	check(t, err)
	if n != 5 {
		t.Errorf("%d pruned", n)
	}
}
