package starts_test

import (
	"bytes"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// BenchmarkIntake loads the same rows without a schema and with one, by turns, and tells what the schema costs: of the
// processor time of the node, which PostgreSQL's is not part of, and of the time that passes.
func BenchmarkIntake(b *testing.B) {
	const rows = 300_000
	schema, err := itemschema.Compile([]byte(`{"type":"object","required":["id","name","kind","opened","balance"],
		"additionalProperties":false,"properties":{
		"id":{"type":"string","pattern":"^CUST-[0-9]+$"},"name":{"type":"string","minLength":1,"maxLength":70},
		"kind":{"enum":["giro","savings"]},"opened":{"type":"string","format":"date"},
		"balance":{"type":"number","minimum":0,"maximum":10000000}}}`))
	if err != nil {
		b.Fatal(err)
	}
	var csv, lines bytes.Buffer
	csv.WriteString("id,name,kind,opened,balance\n")
	for i := range rows {
		fmt.Fprintf(&csv, "CUST-%07d,Ann Example,giro,2024-12-31,%d.25\n", i, i)
		fmt.Fprintf(&lines, `{"id":"CUST-%07d","name":"Ann Example","kind":"giro","opened":"2024-12-31",`+
			`"balance":%d.25}`+"\n", i, i)
	}
	store := database.New(testenv.Pool(b))
	node, err := session.New(store).StartSession(b.Context(), session.NodeInfo{Host: "here", PID: 1, Version: "1"},
		time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	load := func(text []byte, n int, schema *itemschema.Schema) (used, passed time.Duration) {
		from, began := processorTime(b), time.Now()
		source, err := intake.Open(bytes.NewReader(text), intake.Config{Schema: schema,
			Types: map[string]string{"balance": intake.TypeNumber}})
		if err != nil {
			b.Fatal(err)
		}
		var item row.Item
		loaded, err := start.New(store).Load(b.Context(), start.LoadRequest{Plan: "speed" + strconv.Itoa(n), Session: node,
			Steps: []workqueue.StepSpec{{Name: "a", Endpoint: "a",
				StepSettings: workqueue.StepSettings{Chunk: 500, InFlight: 1, MaxAttempts: 1, Timeout: time.Minute}}}},
			func(to *start.LoadItem) error {
				err := source.Next(&item)
				to.Key, to.Payload, to.Line, to.Invalid = item.Key, item.Payload, item.Line, item.Invalid
				return err
			})
		if err != nil || loaded.Items != rows {
			b.Fatalf("%d items, %v", loaded.Items, err)
		}
		return processorTime(b) - from, time.Since(began)
	}
	for name, text := range map[string][]byte{"csv": csv.Bytes(), "ndjson": lines.Bytes()} {
		b.Run(name, func(b *testing.B) {
			var plainUsed, plainTook, used, took time.Duration
			for n := 0; b.Loop(); n++ {
				u, t := load(text, n, nil)
				plainUsed, plainTook = plainUsed+u, plainTook+t
				u, t = load(text, n, schema)
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
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
