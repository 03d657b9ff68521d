package runs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExportOfSomeFiles(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "keys.txt")
	if err := os.WriteFile(keys, []byte("a\n\nnobody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pick := range []exportKeys{{Keys: keys}, {Key: []string{"a", "nobody"}}} {
		dir := filepath.Join(t.TempDir(), "out")
		r := &Export{Dir: dir, Name: "{key}.{ext}", Index: "ndjson", exportKeys: pick}
		out, err := exportTo(t, r, strings.NewReader(exported))
		if err != nil || out.files != 1 || len(out.wanted) != 1 || !out.wanted["nobody"] {
			t.Errorf("%+v: %+v, %v", pick, out, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "a.json")); err != nil {
			t.Error(err)
		}
	}
	if err := (&Export{Name: "{key}", Format: "ndjson", exportKeys: exportKeys{Keys: keys}}).Validate(); err == nil ||
		!strings.Contains(err.Error(), "--dir") {
		t.Errorf("keys without a directory: %v", err)
	}
}
