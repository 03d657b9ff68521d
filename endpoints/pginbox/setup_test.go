package pginbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/pginbox"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds each wait of the tests: what a crash leaves behind may be delivered again after an AckWait only.
const patience = time.Minute

// effects is what handlers of the tests write: a row each time they do something for an item.
const effects = `CREATE TABLE effects (account text, delivery bigint GENERATED ALWAYS AS IDENTITY)`

const writeEffects = `INSERT INTO effects (account) SELECT unnest($1::text[])`

type bundle struct {
	t     *testing.T
	kit   *endpointstest.Kit
	pool  *pgxpool.Pool
	inbox *pginbox.Inbox
}

func setup(t *testing.T) *bundle {
	t.Helper()
	pool := testenv.Connect(t, testenv.EmptyDatabase(t))
	inbox := testenv.Must(pginbox.New(pool, pginbox.Config{}))(t)
	testenv.NoError(t, inbox.Create(t.Context()))
	b := &bundle{t: t, kit: endpointstest.New(t, endpointstest.Timeout(patience)), pool: pool, inbox: inbox}
	b.exec(effects)
	return b
}

func (b *bundle) exec(sql string) {
	b.t.Helper()
	testenv.Must(b.pool.Exec(b.t.Context(), sql))(b.t)
}

// count returns what a query counts.
func (b *bundle) count(sql string, args ...any) int {
	b.t.Helper()
	return testenv.Must(b.tryCount(sql, args...))(b.t)
}

// tryCount is count for other goroutines than the test's.
func (b *bundle) tryCount(sql string, args ...any) (n int, err error) {
	err = b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&n)
	return n, err
}

const countEffects = `SELECT count(*) FROM effects`

func (b *bundle) written() int { return b.count(countEffects) }

func (b *bundle) remembered() int { return b.count(`SELECT count(*) FROM tranche_inbox`) }

type chunk = endpoints.Chunk[string, string]

// book writes an effect for each item and answers with a word of its own.
func book(ctx context.Context, c *chunk) error {
	if _, err := pginbox.Tx(ctx).Exec(ctx, writeEffects, c.Keys()); err != nil {
		return err
	}
	for _, item := range c.Items() {
		item.Reply("booked " + item.In)
	}
	return nil
}

// serve serves a handler in the inbox's transactions, as endpoint "book".
func (b *bundle) serve(handler func(context.Context, *chunk) error, opts ...endpoints.Option) *endpointstest.Instance {
	b.t.Helper()
	return b.kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "book", handler, append(opts, endpoints.Wrap(b.inbox.Once()))...)
	})
}

// items returns n items with the keys K0, K1, ….
func items(n int) []endpointstest.Part {
	parts := make([]endpointstest.Part, n)
	for i := range parts {
		parts[i] = endpointstest.Item(fmt.Sprintf("K%d", i), fmt.Sprintf("in %d", i))
	}
	return parts
}

// same fails the test unless two replies say the same.
func same(t testing.TB, a, b *endpointstest.Reply) {
	t.Helper()
	testenv.MustSame(t, len(b.Slots), len(a.Slots), "slots")
	for n, x := range a.Slots {
		y := b.Slots[n]
		testenv.MustSame(t, fmt.Sprintf("%d %q %q %v", x.Ordinal, x.Data, x.ContentType, x.Err), fmt.Sprintf("%d %q %q %v",
			y.Ordinal, y.Data, y.ContentType, y.Err), "slot %d", n)
	}
}

var errHandler = errors.New("the handler's own")
