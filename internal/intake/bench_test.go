package intake_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
)

const benchRows = 1_000_000

// BenchmarkRead reads a million small rows an operation.
func BenchmarkRead(b *testing.B) {
	var csv, quoted, json bytes.Buffer
	csv.WriteString("id,name,city,balance\n")
	quoted.WriteString("id,name,city,balance\n")
	for i := range benchRows {
		fmt.Fprintf(&csv, "CUST-%07d,Ann Example,Oslo,%d.25\n", i, i)
		fmt.Fprintf(&quoted, "\"CUST-%07d\",\"Ann \"\"Example\"\"\",\"Mosjøen\",\"%d.25\"\n", i, i)
		fmt.Fprintf(&json, `{"id":"CUST-%07d","name":"Ann Example","city":"Oslo","balance":%d.25}`+"\n", i, i)
	}
	schema, err := itemschema.Compile([]byte(benchSchema))
	if err != nil {
		b.Fatal(err)
	}
	inputs := []struct {
		name string
		data []byte
	}{
		{"csv", csv.Bytes()}, {"csv-quoted", quoted.Bytes()}, {"ndjson", json.Bytes()},
		{"csv-gzip", gzipped(b, csv.Bytes())}, {"csv-zstd", zstandard(b, csv.Bytes())},
	}
	for _, input := range inputs {
		b.Run(input.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if rows := drain(b, bytes.NewReader(input.data), intake.Config{}); rows != benchRows {
					b.Fatalf("%d rows", rows)
				}
			}
			b.ReportMetric(benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
		b.Run(input.name+"-schema", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if rows := drain(b, bytes.NewReader(input.data), intake.Config{Schema: schema}); rows != benchRows {
					b.Fatalf("%d rows", rows)
				}
			}
			b.ReportMetric(benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// benchSchema is one as plan infer writes it.
const benchSchema = `{"type":"object","required":["id","name","city","balance"],"properties":{
	"id":{"type":"string","minLength":1},"name":{"type":"string","minLength":1},"city":{"type":"string","minLength":1},
	"balance":{"type":["string","number"]}}}`

func drain(b *testing.B, in io.Reader, cfg intake.Config) int {
	b.Helper()
	r, err := intake.Open(in, cfg)
	if err != nil {
		b.Fatal(err)
	}
	var item row.Item
	for rows := 0; ; rows++ {
		err := r.Next(&item)
		if errors.Is(err, io.EOF) {
			return rows
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
