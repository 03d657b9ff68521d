package migrations_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	madeTable = regexp.MustCompile(`CREATE TABLE (\w+)`)
	madeIndex = regexp.MustCompile(`CREATE (?:UNIQUE )?INDEX (\w+) ON (\w+)`)
)

// Nodes go on while the schema changes: an index on a table that was there before is built beside their work.
func TestIndexesOfTablesInUseAreBuiltConcurrently(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.sql")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		own := map[string]bool{}
		for _, m := range madeTable.FindAllStringSubmatch(up, -1) {
			own[m[1]] = true
		}
		for _, m := range madeIndex.FindAllStringSubmatch(up, -1) {
			if !own[m[2]] {
				t.Errorf("%s: %s locks out everyone who works on %s", file, m[1], m[2])
			}
		}
	}
}
