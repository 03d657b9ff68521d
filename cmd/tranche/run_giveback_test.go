package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/xuri/excelize/v2"
)

const (
	givenPeople = `{"id":"1","name":"bad","n":12.50,"note":"=1+1","tags":["a"],"vip":true}
{"id":"2","name":"bad","n":7,"note":"'+49 30"}
{"id":"+49","name":"bad","n":null,"note":""}
`
	// What 1 and 2 are like when only the cell with the name has changed.
	givenBack = `{"id":"1","name":"ann","n":12.50,"note":"=1+1","tags":["a"],"vip":true}`
)

// What failed goes to a department as a table, and comes back with a cell corrected, from a text or a workbook, into
// the same run or into one that carries it on; all else is as it was.
func TestAnExportIsGivenBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.echo(nil)
	file := filepath.Join(t.TempDir(), "failed.xlsx")
	start := []string{"run", "start", "--endpoint", "echo", "--items", "-", "--guard", "off", "--wait"}
	b.want(b.pipe(givenPeople, append(start, "--name", "it")...), 3, "3 failed")
	b.want(b.tranche("run", "errors", "it"), 0, "--flat --with payload --format xlsx", "tranche run correct")
	b.want(b.tranche("run", "explain", "it"), 0, "tranche run correct")
	export := []string{"run", "export", "it", "--state", "failed", "--flat", "--with", "payload", "--format"}
	csv := b.tranche(append(export, "csv")...)
	for _, part := range []string{"tranche.key,id,name,n,note,tags,vip,tranche.state", "'=1+1", "''+49 30"} {
		if !strings.Contains(csv.out, part) {
			t.Errorf("no %s in %s", part, csv.out)
		}
	}
	if r := b.tranche(append(export, "xlsx", "-o", file)...); r.code != 0 {
		t.Fatal(r)
	}
	correct := []string{"run", "correct", "it", "--items"}
	b.want(b.pipe(csv.out, append(correct, "-")...), 1, "3 items are in the run just as given")
	b.want(b.tranche(append(correct, file)...), 1, "3 items are in the run just as given")

	from := []string{"run", "start", "--from", "it", "--state", "failed", "--name", "more", "--idempotency-key", "k"}
	mended := strings.Replace(csv.out, "1,1,bad", "1,1,ann", 1)
	b.want(b.pipe(mended, append(from, "--correct", "-")...), 0, "3 items")
	b.want(b.pipe(mended, append(from, "--correct", "-")...), 0, "there already, by its idempotency key")
	b.want(b.tranche("run", "item", "more", "1"), 0, givenBack)
	other := written(t, "other.csv", strings.Replace(csv.out, "1,1,bad", "1,1,eve", 1))
	b.want(b.tranche(append(from, "--correct", other)...), 1, "with other content: corrections")
	b.want(b.tranche(from...), 1, "with other content: corrections")

	book, err := excelize.OpenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for cell, name := range map[string]string{"C2": "ann", "C3": "bob", "C4": "cy"} {
		if err := book.SetCellValue("items", cell, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := book.Save(); err != nil {
		t.Fatal(err)
	}
	b.want(b.tranche(append(correct, file, "--wait")...), 0, "has 3 items corrected", "3 of 3 items done")
	b.want(b.tranche("run", "item", "it", "1"), 0, givenBack)
	b.want(b.tranche("run", "item", "it", "2"), 0, `{"id":"2","name":"bob","n":7,"note":"'+49 30"}`)
	b.want(b.tranche("run", "item", "it", "+49"), 0, `{"id":"+49","name":"cy","n":null,"note":""}`)
	b.wantSoon([]string{"erase", "--key", "+49", "--dry-run"}, "dry run, would be erased, out of 2 runs", "not reached")
	b.want(b.tranche("erase", "--key", "+49"), 2, "say --yes")
	b.want(b.tranche("erase", "--key", "+49", "--yes"), 0, "erased, out of 2 runs", "stands where the key stood")
	b.want(b.tranche("run", "item", "it", "+49"), 1, "no item")
	b.want(b.tranche("audit", "--action", "erase"), 0, "PBKDF2")
	b.want(b.tranche("doctor"), 0)
}
