package main

import (
	"strings"
	"testing"
)

// A file is looked at, its schema proposed, refused when it does not fit, and let in with what fails alone.
func TestItemsWithASchema(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.url = b.serve()["api"]
	b.echo(nil)
	good := written(t, "good.csv", "id,balance\nC-1,1\nC-2,2\n")
	bad := written(t, "bad.csv", "id;saldo;x\nC-1;9;J\xfcrgen\nC-2;x;\nC-3;10;\n")
	proposed := b.tranche("plan", "infer", "--items", good)
	b.want(proposed, 0, `"pattern": "^-?[0-9]+$"`, "of 2 rows")
	schema := written(t, "schema.json", proposed.out[strings.IndexByte(proposed.out, '{'):])
	start := []string{"run", "start", "--endpoint", "echo", "--items", bad, "--schema", schema}
	b.want(b.tranche(start...), 1, "it may be windows-1252", "--encoding windows-1252")
	start = append(start, "--encoding", "cp1252")
	b.want(b.tranche(start...), 1, "bad.csv: 3 items do not fit the schema", `field "balance": it is missing`)
	start = append(start, "--rename", "saldo=balance", "--columns", "id,saldo", "--sort", "balance", "--desc")
	b.want(b.tranche(start...), 1, `line 3, key "C-2", field "balance": 'x' does not match pattern`)
	start = append(start, "--invalid", "fail", "--idempotency-key", "k", "--wait")
	b.want(b.tranche(start...), 3, "1 invalid")
	b.want(b.tranche("run", "errors", "last"), 0, "invalid", "C-2")
	b.want(b.tranche("run", "item", "last", "C-3"), 0, "ordinal  1", `{"id":"C-3","balance":"10"}`)
	b.want(b.tranche("run", "rerun", "last", "--failed"), 1, "1 item is invalid")
	b.want(b.tranche(append(start, "--on-duplicate", "skip")...), 1, "with other content: on_duplicate")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", good, "--types", "balance"), 2,
		"--types: want NAME=VALUE")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", good, "--schema", bad), 2, "not valid JSON")
}
