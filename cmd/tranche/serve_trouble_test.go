package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testenv"
)

// waitingAPI is where the API of a serve is that waits for something.
func (s *server) waitingAPI(t *testing.T) string {
	t.Helper()
	const before, after = "the API at ", " answers, with status 503"
	eventually(t, "serve says that it waits", func() bool { return strings.Contains(s.log.String(), after) })
	_, rest, _ := strings.Cut(s.log.String(), before)
	where, _, _ := strings.Cut(rest, after)
	return where
}

func readyz(t *testing.T, where string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, where+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// soon is how long a serve that waits for something takes to end at the most: less than half of its grace, which is
// more than a busy machine needs.
const (
	ample = time.Minute
	soon  = ample / 2
)

// A PostgreSQL whose disk is full is named, and once there is room serve goes on by itself.
func TestServeNamesAFullDisk(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	pool := testenv.Connect(t, database)
	// What PostgreSQL says when a file cannot grow.
	_, err := pool.Exec(t.Context(), `
		CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
			$$BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$;
		CREATE TRIGGER full_disk BEFORE INSERT ON node_session EXECUTE FUNCTION full_disk();`)
	if err != nil {
		t.Fatal(err)
	}
	s := launch(t, false, "--database", database, "--nats", testenv.NATS(t).URL(), "--grace", ample.String())
	where := s.waitingAPI(t)
	eventually(t, "the reason is named", func() bool {
		code, text := readyz(t, where)
		return code == 503 && strings.Contains(text, "PostgreSQL has no room left on its disk")
	})
	b := &bench{T: t, url: where}
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-"), 1, "no room left on its disk")
	if _, err := pool.Exec(t.Context(), `DROP TRIGGER full_disk ON node_session`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it goes on by itself", func() bool { code, _ := readyz(t, where); return code == 200 })
	if took, err := s.End(t); err != nil || took > soon {
		t.Errorf("serve took %s to end, %v: %s", took, err, s.log.String())
	}
}
