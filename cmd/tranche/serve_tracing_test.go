package main

import (
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testenv"
)

// A serve sends what it has traced at the latest when it stops; what it published for no service included.
func TestServeSendsSpans(t *testing.T) {
	t.Parallel()
	var batches atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if path.Base(r.URL.Path) == "traces" {
			batches.Add(1)
		}
	}))
	t.Cleanup(receiver.Close)
	database := testenv.Database(t)
	s := launch(t, true, "--database", database, "--nats", testenv.NATS(t).URL(), "--trace-otlp", receiver.URL)
	started := runProgram(t, nil, "id\n1\n", "run", "start", "--url", s.where["api"], "--endpoint", "nobody",
		"--items", "-", "--format", "csv", "--key", "id")
	if started.code != 0 {
		t.Fatalf("the run did not start: %+v", started)
	}
	pool := testenv.Connect(t, database)
	eventually(t, "the slice is sent", func() bool {
		var sent int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM work_slice WHERE state = 'sent'`).Scan(&sent)
		if err != nil {
			t.Fatal(err)
		}
		return sent == 1
	})
	if _, err := s.End(t); err != nil {
		t.Errorf("serve ended with %v: %s", err, s.log.String())
	}
	if batches.Load() == 0 {
		t.Errorf("no spans came: %s", s.log.String())
	}
}

func TestWrongTracingSettings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--trace-ratio", "2"}, "--trace-ratio is 2"},
		{[]string{"--trace-otlp", "collector:4317"}, "--trace-otlp: "},
		{[]string{"--trace-ratio", "NaN"}, "--trace-ratio is NaN"},
	} {
		got := runProgram(t, nil, "", append([]string{"serve"}, test.args...)...)
		if got.code != cli.ExitUsage || !strings.Contains(got.err, test.want) {
			t.Errorf("%v: %+v", test.args, got)
		}
	}
}
