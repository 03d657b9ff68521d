package systest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/tools/faultyservice"
)

const (
	servers = 10
	kills   = 6 // of leaders
)

// about is a condition in a message.
type about struct {
	Subject string `json:"subject"`
}

// alertMessage is what a webhook is told.
type alertMessage struct {
	ID       string  `json:"id"`
	Begun    []about `json:"begun"`
	BegunAll int     `json:"begun_count"`
	Over     []about `json:"over"`
	OverAll  int     `json:"over_count"`
}

// listener is a webhook's receiver: what it was told of each run, by the messages' ids.
type listener struct {
	*httptest.Server

	mu    sync.Mutex
	told  map[string]map[string]bool // what became of which run, and the ids of the messages that say so
	again int                        // messages that came more than once
	ids   map[string]bool
	bad   error
}

func listen(t *testing.T) *listener {
	t.Helper()
	l := &listener{told: map[string]map[string]bool{}, ids: map[string]bool{}}
	l.Server = httptest.NewServer(http.HandlerFunc(l.hear))
	t.Cleanup(l.Close)
	return l
}

func (l *listener) hear(w http.ResponseWriter, r *http.Request) {
	var doc struct{ Data alertMessage }
	err := json.NewDecoder(r.Body).Decode(&doc)
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &doc.Data
	id := r.Header.Get("webhook-id")
	if err != nil || id == "" || m.ID != id || len(m.Begun) != m.BegunAll || len(m.Over) != m.OverAll {
		l.bad = fmt.Errorf("message %q of %+v: %w", id, m, err)
	}
	if l.ids[id] {
		l.again++
	}
	l.ids[id] = true
	for what, items := range map[string][]about{"begun ": m.Begun, "over ": m.Over} {
		for _, item := range items {
			if l.told[what+item.Subject] == nil {
				l.told[what+item.Subject] = map[string]bool{}
			}
			l.told[what+item.Subject][id] = true
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// heard returns in how many messages it was told what became of a run.
func (l *listener) heard(what, run string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.told[what+" "+run])
}

// secrets is the operator's file, which lets webhooks go to the receiver.
func (l *listener) secrets(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "connections.yaml")
	for name, text := range map[string]string{
		path: fmt.Sprintf("secrets:\n  hooks: {file: hooks.key, hosts: [%q]}\nhttp: {allow_private: [127.0.0.1]}\n",
			l.URL),
		filepath.Join(dir, "hooks.key"): "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// crew are servers of which one leads.
type crew struct {
	*office
	all []*server
}

// killLeader kills whoever leads, waits until another one does, and returns a server that is left.
func (c *crew) killLeader() *server {
	c.Helper()
	for len(c.all) > 1 {
		if c.killOnce() {
			return c.all[0]
		}
	}
	c.Fatal("no server that led was killed, and there is no other left")
	return nil
}

// killOnce kills the server that leads, and reports whether it led until then: on a busy machine another one may have
// taken the lease just before.
func (c *crew) killOnce() (led bool) {
	c.Helper()
	before, pid := c.led(), 0
	err := c.pool.QueryRow(c.Context(), `SELECT epoch, pid FROM leader l JOIN node_session s ON s.id = l.session_id`).Scan(
		&before, &pid)
	i := slices.IndexFunc(c.all, func(s *server) bool { return s.cmd.Process.Pid == pid })
	if err != nil || i < 0 {
		c.Fatalf("process %d leads in epoch %d, and is none of ours: %v", pid, before, err)
	}
	var at time.Time
	if err := c.pool.QueryRow(c.Context(), `SELECT tranche_now()`).Scan(&at); err != nil {
		c.Fatal(err)
	}
	c.kill(c.all[i])
	c.all = slices.Delete(c.all, i, i+1)
	c.takeover(before)
	return c.number(`SELECT count(*) FROM leader l JOIN node_session s ON s.id = l.session_id
		WHERE epoch > $1 AND since > $2 AND pid <> $3`, before, at, pid) == 1
}

// Ten servers, and a leader that is killed each time that something has changed: whatever begins is told once, and
// once that it is over.
func TestAlertsAreToldOnceWhileLeadersAreKilled(t *testing.T) {
	t.Parallel()
	c := &crew{office: newOffice(t, testenv.Program(t, root), faultyservice.Config{})}
	l := listen(t)
	connections := l.secrets(t)
	c.all = make([]*server, servers)
	for i := range c.all {
		c.all[i] = c.serve("--connections", connections)
	}
	rule := filepath.Join(t.TempDir(), "told.yaml")
	text := fmt.Sprintf("when: {runs: [paused]}\nto: {webhook: {url: %q, secret: hooks}}\nwait: 0s\ninterval: 0s\n", l.URL)
	if err := os.WriteFile(rule, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at := c.all[0]
	c.must(at, "alert", "apply", rule)
	var runs []string
	for n := range kills / 2 {
		run := c.begin(at, 10, "--endpoint", "nobody").String()
		runs = append(runs, run)
		c.must(at, "run", "pause", run)
		if n%2 == 0 { // else it may be told by who dies, or by who comes after
			c.until("it is told that "+run+" is paused", func() bool { return l.heard("begun", run) > 0 })
		}
		at = c.killLeader()
		c.until("it is told that "+run+" is paused", func() bool { return l.heard("begun", run) > 0 })
		c.must(at, "run", "resume", run)
		if n%2 == 1 {
			c.until("it is told that "+run+" is over", func() bool { return l.heard("over", run) > 0 })
		}
		at = c.killLeader()
		c.until("it is told that "+run+" is over", func() bool { return l.heard("over", run) > 0 })
	}
	c.until("all is delivered, and looked at again", func() bool {
		return c.number(`SELECT count(*) FROM alert_message WHERE state <> 'delivered'`) == 0 &&
			c.number(`SELECT count(*) FROM alert_condition`) == 0
	})
	for _, run := range runs {
		if begun, over := l.heard("begun", run), l.heard("over", run); begun != 1 || over != 1 {
			t.Errorf("run %s: told %d times that it is paused, and %d times that this is over; want 1 and 1", run, begun, over)
		}
	}
	if l.bad != nil || len(l.ids) != 2*len(runs) {
		t.Errorf("%d messages about %d changes; %v", len(l.ids), 2*len(runs), l.bad)
	}
	t.Logf("%d leaders were killed; %d messages came again, under their ids", kills, l.again)
}
