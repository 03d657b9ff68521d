package bank_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/examples/bank"
)

// turnover is an endpoint's answer: what came in over a year.
type turnover struct {
	In int64 `json:"in"`
}

const (
	turnoverOf = `SELECT coalesce(sum(amount), 0) FROM movement WHERE account = $1 AND amount > 0`
	turnovers  = `
SELECT asked.id, coalesce(sum(amount), 0) FROM unnest($1::int[]) asked (id)
LEFT JOIN movement ON account = asked.id AND amount > 0 GROUP BY 1`
)

// itemByItem is how an endpoint begins.
func itemByItem(db *pgxpool.Pool) func(context.Context, bank.Customer) (turnover, error) {
	return func(ctx context.Context, c bank.Customer) (t turnover, err error) {
		return t, db.QueryRow(ctx, turnoverOf, c.Account).Scan(&t.In)
	}
}

// aList is what becomes of it: the same answers by one query for the chunk.
func aList(db *pgxpool.Pool) func(context.Context, *endpoints.Chunk[bank.Customer, turnover]) error {
	return func(ctx context.Context, chunk *endpoints.Chunk[bank.Customer, turnover]) error {
		var ids []int32
		for _, item := range chunk.Items() {
			ids = append(ids, item.In.Account)
		}
		rows, err := db.Query(ctx, turnovers, ids)
		if err != nil {
			return err
		}
		in := map[int32]int64{}
		var id int32
		var amount int64
		if _, err := pgx.ForEachRow(rows, []any{&id, &amount}, func() error { in[id] = amount; return nil }); err != nil {
			return err
		}
		for _, item := range chunk.Items() {
			item.Reply(turnover{in[item.In.Account]})
		}
		return nil
	}
}

// served is a service with the endpoint in both forms.
func served(t testing.TB, accounts int) *endpointstest.Kit {
	t.Helper()
	db := database(t)
	_, err := db.Exec(t.Context(), `
TRUNCATE movement;
INSERT INTO movement SELECT a, date '2025-01-01' + 18 * n, (a * 37 + n * 101) % 5000 - 1000
FROM generate_series(1, `+fmt.Sprint(accounts)+`) a, generate_series(1, 20) n;
CREATE INDEX ON movement (account)`)
	must(t, err)
	_, err = db.Exec(t.Context(), `VACUUM ANALYZE movement`)
	must(t, err)
	kit := endpointstest.New(t)
	kit.Serve(func(svc *endpoints.Service) error {
		if err := endpoints.HandleEach(svc, "each", itemByItem(db)); err != nil {
			return err
		}
		return endpoints.HandleList(svc, "list", aList(db))
	})
	return kit
}

func chunkOf(first, n int) (parts []endpointstest.Part) {
	for account := first; account < first+n; account++ {
		parts = append(parts, endpointstest.Item(fmt.Sprint(account), map[string]string{"account": fmt.Sprint(account)}))
	}
	return parts
}

// An endpoint that becomes a list endpoint answers as before: who asks it does not notice.
func TestAnEndpointBecomesAListEndpoint(t *testing.T) {
	t.Parallel()
	kit := served(t, 100)
	each, list := kit.Send("each", chunkOf(90, 20)...), kit.Send("list", chunkOf(90, 20)...)
	for account := 90; account < 110; account++ {
		key := fmt.Sprint(account)
		a, b := endpointstest.Result[turnover](t, each, key), endpointstest.Result[turnover](t, list, key)
		if a != b || account <= 100 && a.In == 0 {
			t.Errorf("account %s: %+v item by item, %+v by the list", key, a, b)
		}
	}
}

// BenchmarkEachOrList has chunks of 500 answered in turns by the one and the other.
func BenchmarkEachOrList(b *testing.B) {
	kit := served(b, 100_000)
	took := map[string]time.Duration{}
	n := 0
	for b.Loop() {
		for _, endpoint := range []string{"each", "list"} {
			parts, began := chunkOf(1+n*500%99_500, 500), time.Now()
			kit.Send(endpoint, parts...)
			took[endpoint] += time.Since(began)
		}
		n++
	}
	b.ReportMetric(took["each"].Seconds()*1000/float64(n), "ms/chunk-each")
	b.ReportMetric(took["list"].Seconds()*1000/float64(n), "ms/chunk-list")
	b.ReportMetric(took["each"].Seconds()/took["list"].Seconds(), "each/list")
}
