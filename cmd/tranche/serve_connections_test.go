package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/workqueue"
)

// A file of connections that is wrong stops serve before it starts anything, with the line and the field.
func TestServeReadsConnections(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "connections.yaml")
	for text, want := range map[string]string{
		"http: {allow_private: [127.0.0.1]}": "",
		"http:\n  allow_privat: [127.0.0.1]": path +
			":2:3: http.allow_privat: there is no such field; there are allow_private",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := &parts{}
		err := (&serveCommand{Connections: path}).openConnections(p)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if want == "" && (p.fetchers[workqueue.KindHTTP] == nil || p.fetchers[workqueue.KindSQL] == nil) {
			t.Error("there are no fetchers")
		}
		for _, undo := range p.undo {
			if err := undo(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}
