package runs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// account is a row that has what rows mostly have.
type account struct {
	ID       string  `json:"id" parquet:"id"`
	Name     string  `json:"name" parquet:"name"`
	Kind     string  `json:"kind" parquet:"kind"`
	Opened   string  `json:"opened" parquet:"opened"`
	Balance  float64 `json:"balance" parquet:"balance"`
	Limit    int64   `json:"limit" parquet:"limit"`
	Currency string  `json:"currency" parquet:"currency"`
	Active   bool    `json:"active" parquet:"active"`
	Branch   int64   `json:"branch" parquet:"branch"`
	IBAN     string  `json:"iban" parquet:"iban"`
}

const accountSchema = `{"type":"object","required":["id","name","kind","opened","balance"],"additionalProperties":false,
	"properties":{
	"id":{"type":"string","pattern":"^CUST-[0-9]+$"},"name":{"type":"string","minLength":1,"maxLength":70},
	"kind":{"enum":["giro","savings"]},"opened":{"type":"string","format":"date"},
	"balance":{"type":"number","minimum":0,"maximum":10000000},"limit":{"type":"integer","minimum":0},
	"currency":{"type":"string","pattern":"^[A-Z]{3}$"},"active":{"type":"boolean"},
	"branch":{"type":"integer","minimum":1,"maximum":999},
	"iban":{"type":"string","pattern":"^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$"}}}`

// accountFiles are the same rows in each format.
func accountFiles(b *testing.B, rows int) map[string][]byte {
	b.Helper()
	var csv, lines, columns bytes.Buffer
	csv.WriteString("id,name,kind,opened,balance,limit,currency,active,branch,iban\n")
	pq := parquet.NewGenericWriter[account](&columns)
	for i := range rows {
		a := account{ID: fmt.Sprintf("CUST-%07d", i), Name: "Ann Example", Kind: []string{"giro", "savings"}[i%2],
			Opened: fmt.Sprintf("20%02d-%02d-%02d", i%25, 1+i%12, 1+i%28), Balance: float64(i) + 0.25,
			Limit: int64(i%4) * 500, Currency: "EUR", Active: i%3 > 0, Branch: int64(1 + i%900),
			IBAN: fmt.Sprintf("DE%02d%018d", i%100, i)}
		line, err := json.Marshal(a)
		if err == nil {
			_, err = pq.Write([]account{a})
		}
		testenv.NoError(b, err)
		lines.Write(append(line, '\n'))
		fmt.Fprintf(&csv, "%s,%s,%s,%s,%.2f,%d,%s,%t,%d,%s\n", a.ID, a.Name, a.Kind, a.Opened, a.Balance, a.Limit, a.Currency,
			a.Active, a.Branch, a.IBAN)
	}
	testenv.NoError(b, pq.Close())
	return map[string][]byte{"csv": csv.Bytes(), "ndjson": lines.Bytes(), "parquet": columns.Bytes()}
}

// BenchmarkIntake loads the same rows without a schema and with one, by turns, and tells what the schema costs: of the
// processor time of the node, which PostgreSQL's is not part of, and of the time that passes.
func BenchmarkIntake(b *testing.B) {
	const rows = 300_000
	schema := testenv.Must(itemschema.Compile([]byte(accountSchema)))(b)
	store := database.New(testenv.Pool(b))
	node, err := session.New(store).StartSession(b.Context(), session.NodeInfo{Host: "here", PID: 1, Version: "1"},
		time.Hour)
	testenv.NoError(b, err)
	load := func(text []byte, types map[string]string, schema *itemschema.Schema) (used, passed time.Duration) {
		runtime.GC() // of the run before
		from, began := processorTime(b), time.Now()
		source := testenv.Must(intake.Open(bytes.NewReader(text), intake.Config{Schema: schema, Types: types,
			Spool: &intake.Spool{Dir: b.TempDir()}}))(b)
		loaded, err := start.New(store).Load(b.Context(), start.LoadRequest{Plan: "speed", Session: node,
			Steps: []workqueue.StepSpec{{Name: "a", Endpoint: "a",
				StepSettings: workqueue.StepSettings{Chunk: 500, InFlight: 1, MaxAttempts: 1, Timeout: time.Minute}}}},
			runs.LoadItems(source))
		if err := errors.Join(err, source.Close()); err != nil || loaded.Items != rows {
			b.Fatalf("%d items, %v", loaded.Items, err)
		}
		return processorTime(b) - from, time.Since(began)
	}
	files := accountFiles(b, rows)
	for _, format := range []string{"csv", "ndjson", "parquet"} {
		var types map[string]string
		if format == "csv" {
			types = map[string]string{"balance": intake.TypeNumber, "limit": intake.TypeNumber, "branch": intake.TypeNumber,
				"active": intake.TypeBool}
		}
		b.Run(format, func(b *testing.B) {
			var plainUsed, plainTook, used, took time.Duration
			for b.Loop() {
				u, t := load(files[format], types, nil)
				plainUsed, plainTook = plainUsed+u, plainTook+t
				u, t = load(files[format], types, schema)
				used, took = used+u, took+t
			}
			b.ReportMetric(100*float64(used-plainUsed)/float64(plainUsed), "%cpu")
			b.ReportMetric(100*float64(took-plainTook)/float64(plainTook), "%time")
			b.ReportMetric(float64(plainUsed.Nanoseconds())/float64(b.N)/rows, "ns-cpu/row")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	testenv.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
