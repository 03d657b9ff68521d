package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"testing"
)

// What goes to Tranche as CSV must be what the others get as JSON, or the contestants would not do the same work.
func TestCSVHoldsThePayloads(t *testing.T) {
	t.Parallel()
	for name, input := range map[string]items{
		"ordered": {n: 5_000},
		"random":  {n: 5_000, random: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := csv.NewReader(input.csv())
			if _, err := rows.Read(); err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for i := 0; ; i++ {
				row, err := rows.Read()
				if errors.Is(err, io.EOF) {
					if i != input.n {
						t.Errorf("the stream holds %d items, want %d", i, input.n)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				fields, _ := json.Marshal(customer{ID: row[0], Name: row[1], Segment: row[2], Since: row[3]})
				if payload := input.appendPayload(nil, i); string(fields) != string(payload) {
					t.Fatalf("row %d is %s, its payload %s", i, fields, payload)
				}
				if seen[row[0]] || row[0] != string(input.appendKey(nil, i)) {
					t.Fatalf("row %d has the key %s: doubled, or not the item's", i, row[0])
				}
				seen[row[0]] = true
			}
		})
	}
}
