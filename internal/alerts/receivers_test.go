package alerts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/alert"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// One receiver hangs, one refuses connections, one answers 500, one redirects: nothing else waits for any of them, not
// the look at what there is to tell, nor those who are to be told.
func TestReceiversThatHang(t *testing.T) {
	t.Parallel()
	release, hanging := make(chan struct{}), make(chan struct{}, 1)
	hang := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		hanging <- struct{}{}
		<-release
	}))
	t.Cleanup(hang.Close)
	t.Cleanup(func() { close(release) })
	gone := "http://" + testenv.QuietAddr(t) // connections are refused
	broken, away, good := newReceiver(t, 500), newReceiver(t, 307), newReceiver(t)
	b := setup(t)
	b.operator("", hang.URL, gone, broken.URL, away.URL, good.URL)
	rule := func(url string) string {
		return fmt.Sprintf("when: {health: warning}\nto: {webhook: {url: %q, secret: hooks}}\n", url)
	}
	for name, url := range map[string]string{
		"hang": hang.URL, "gone": gone, "broken": broken.URL, "away": away.URL, "good": good.URL,
	} {
		b.apply(name, rule(url))
	}
	d := b.task(func(c *alerts.Config, w *alerts.TaskConfig) { c.Timeout, w.FirstRetry = time.Hour, time.Hour })
	lease := b.lease()
	b.says(condition("e", store.Warning))
	b.look(d, lease)
	sent := testenv.Begin(t, func() (time.Duration, error) { return d.Send(t.Context(), lease) })
	<-hanging
	// A group of which a message waits is reported at a later look only.
	waitUntil(t, "it is noted that the good one was notified", func() bool {
		return good.count() == 1 && b.messages("good")[0].State == alert.MessageDelivered
	})
	// While one hangs there is more to tell.
	b.says(condition("e", store.Warning), condition("f", store.Warning))
	b.look(d, lease)
	waitUntil(t, "the good one was notified again", func() bool { return good.count() == 2 })
	for name, want := range map[string]string{
		"gone": "127.0.0.1:", "broken": "answers 500 Internal Server Error", "away": "redirects are not followed",
	} {
		waitUntil(t, name+" has failed", func() bool { return b.alert(name).Failures > 0 })
		got := b.alert(name)
		if !strings.Contains(got.Error, want) || got.FailingSince == nil || strings.Contains(got.Error, hookSecret) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := b.messages("hang"); got[0].State != alert.MessageWaiting || got[0].Attempts != 1 {
		t.Errorf("%+v", got)
	}
	release <- struct{}{}
	sent()
}

func waitUntil(t *testing.T, what string, so func() bool) {
	t.Helper()
	testenv.Until(t, soon, what, so)
}

func (b *bench) alert(name string) *alert.AlertView {
	b.Helper()
	return testenv.Must(b.store.Alert(b.Context(), name))(b)
}

// Chats are told at a URL that is a secret, in their own form, and nothing that is kept or said has the secret in it.
func TestChats(t *testing.T) {
	t.Parallel()
	slack, teams := newReceiver(t, 500), newReceiver(t)
	b := setup(t)
	b.operator("", slack.URL, teams.URL)
	b.apply("slack", "when: {health: warning}\nto: {slack: {secret: chat0}}\n")
	b.apply("teams", "when: {health: warning}\nto: {teams: {secret: chat1}}\n")
	d := b.task(func(_ *alerts.Config, w *alerts.TaskConfig) { w.FirstRetry = time.Hour })
	lease := b.lease()
	b.says(condition("<!channel>", store.Critical))
	b.turn(d, lease)
	testenv.Has(t, b.alert("slack").Error, "answers 500", "its trouble")
	b.keepsNoSecrets()
	b.exec(`UPDATE alert SET next_at = tranche_now()`)
	b.send(d, lease)
	if slack.count() != 2 || teams.count() != 1 {
		t.Fatalf("Slack was notified %d times, Teams %d times; want 2 and 1", slack.count(), teams.count())
	}
	text := string(slack.bodies[1])
	for _, part := range []string{
		`{"text":"*\u003chttps://tranche.bank.example/`,
		`[critical] No service listens on endpoint \u0026lt;!channel\u0026gt;`,
		"Waiting on",
	} {
		testenv.Has(t, text, part, "the message to Slack")
	}
	if !bytes.Equal(slack.bodies[0], slack.bodies[1]) || slack.got[0].URL.Path != chatPath {
		t.Error("two attempts differ, or go elsewhere")
	}
	for _, part := range []string{`"type":"AdaptiveCard"`, `"type":"message"`, `"Action.OpenUrl"`} {
		testenv.Has(t, string(teams.bodies[0]), part, "the message to Teams")
	}
}

// What others have named runs and endpoints makes no link, hides nothing, and does not turn the order of what is read.
func TestTextsOfOthersAreInert(t *testing.T) {
	t.Parallel()
	teams := newReceiver(t)
	b := setup(t)
	b.operator("", teams.URL)
	b.apply("r", "when: {health: warning}\nto: {teams: {secret: chat0}}\n")
	d, lease := b.task(), b.lease()
	c := condition("e\u202Ef", store.Critical)
	c.Link = "/endpoint?name=e%E2%80%AEf" // as health makes it
	c.Title = "a\u202Eb\u200B\u2028c\u00A0d\ne \\[here](https://evil.example)"
	b.says(c)
	b.turn(d, lease)
	var doc struct {
		Attachments []struct {
			Content struct{ Body []struct{ Text string } }
		}
	}
	testenv.NoError(t, json.Unmarshal(teams.bodies[0], &doc))
	testenv.Same(t, doc.Attachments[0].Content.Body[0].Text, `\[critical] ab c d e \\\[here](https://evil.example)`,
		"the heading is")
	for _, bad := range []string{"\u202E", "\u200B", "\u2028"} {
		if body := doc.Attachments[0].Content.Body[1].Text; strings.Contains(body, bad) {
			t.Errorf("it has %q: %q", bad, body)
		}
	}
}

// keepsNoSecrets looks for secrets in all that is kept.
func (b *bench) keepsNoSecrets() {
	b.Helper()
	rows := testenv.Must(b.pool.Query(b.Context(), `SELECT to_jsonb(a)::text FROM alert a
		UNION ALL SELECT to_jsonb(m)::text FROM alert_message m UNION ALL SELECT to_jsonb(l)::text FROM audit_log l`))(b)
	defer rows.Close()
	for rows.Next() {
		var row string
		testenv.NoError(b, rows.Scan(&row))
		if strings.Contains(row, hookSecret) || strings.Contains(row, "T000") {
			b.Errorf("a secret is kept: %s", row)
		}
	}
}

// What the operator does not allow is refused, and nothing of a secret is said.
func TestReceiversThatAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.operator("127.0.0.1:25", "http://127.0.0.1:2")
	receivers := testenv.Must(alerts.NewReceivers(alerts.Config{Connections: b.conns, Transport: http.DefaultTransport,
		Programs: map[string]string{"page": "/bin/true"}}))(t)
	for text, want := range map[string]string{
		`to: {webhook: {url: "http://evil.example/", secret: hooks}}`:  "to.webhook: secret \"hooks\" is not meant for",
		`to: {webhook: {url: "http://127.0.0.1:1/", secret: other}}`:   "knows no secret \"other\"",
		`to: {slack: {secret: hooks}}`:                                 "is not a URL of one of its hosts",
		`to: {teams: {secret: none}}`:                                  "knows no secret \"none\"",
		`to: {email: {to: [ann@evil.example]}}`:                        "mail may not go to ann@evil.example",
		`to: {command: sh}`:                                            "runs no program \"sh\"; it allows page",
		`to: {webhook: {url: "http://127.0.0.1:1/ok", secret: hooks}}`: "",
		`to: {slack: {secret: chat0}}`:                                 "",
		`to: {email: {to: [ann@bank.example]}}`:                        "",
		`to: {command: page}`:                                          "",
	} {
		spec := testenv.Must(alerts.Parse("r", []byte("when: {health: info}\n"+text)))(t)
		err := receivers.Check(&spec.To)
		bad := &alerts.BadReceiverError{}
		if want == "" && err != nil || want != "" && (!errors.As(err, &bad) || !strings.Contains(err.Error(), want)) ||
			err != nil && strings.Contains(err.Error(), hookSecret) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	for name, config := range map[string]alerts.Config{
		"a relative path": {Programs: map[string]string{"page": "page"}}, "no URL": {Public: "tranche"},
		"a password": {Public: "https://me:pass@tranche"},
	} {
		config.Transport = http.DefaultTransport
		_, err := alerts.NewReceivers(config)
		testenv.Fails(t, err, "%s is taken", name)
	}
}

// A private address that the operator's file does not allow is not reached, whatever the secret says.
func TestAddressesAreGuarded(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	b.conns.HTTP.AllowPrivate = nil
	b.apply("r", "when: {health: warning}\n"+host.rule())
	d := b.task(func(_ *alerts.Config, w *alerts.TaskConfig) { w.FirstRetry = time.Hour })
	lease := b.lease()
	b.says(condition("e", store.Warning))
	b.turn(d, lease)
	if got := b.alert("r"); host.count() != 0 || !strings.Contains(got.Error, "private network") {
		t.Errorf("it was reported %d times: %+v", host.count(), got)
	}
}

func program(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	testenv.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700))
	return path
}

// A program is run with the message on its standard input and nothing of the server's environment; one that fails,
// says much or hangs is bounded.
func TestPrograms(t *testing.T) {
	t.Setenv("TRANCHE_DATABASE", "postgres://me:secret@bank/tranche")
	out := filepath.Join(t.TempDir(), "out")
	b := setup(t)
	programs := map[string]string{
		"page": program(t, "{ env; echo; cat; } > "+out+"\n"),
		"loud": program(t, "head -c 1000000 /dev/zero | tr '\\0' x\necho no >&2\nexit 3\n"),
		"hang": program(t, "echo begun\nsleep 1000 &\nwait\n"),
		"left": program(t, "sleep 1000 &\n"),
	}
	within := func(timeout time.Duration) *alerts.LeaderTask {
		return b.task(func(c *alerts.Config, w *alerts.TaskConfig) {
			c.Programs, c.Timeout, w.FirstRetry = programs, timeout, time.Hour
		})
	}
	impatient, d, lease := within(100*time.Millisecond), within(time.Minute), b.lease()
	b.says(condition("e", store.Critical))
	b.apply("hang", "when: {health: warning}\nto: {command: hang}\n")
	b.look(d, lease)
	b.send(impatient, lease)
	for _, name := range []string{"page", "loud", "left"} {
		b.apply(name, "when: {health: warning}\nto: {command: "+name+"}\n")
	}
	b.turn(d, lease)
	text := testenv.Must(os.ReadFile(out))(t)
	for _, part := range []string{
		"TRANCHE_ALERT=page\n", "TRANCHE_ALERT_SEVERITY=critical\n", "TRANCHE_ALERT_TITLE=No service listens on endpoint e\n",
		`"title":"No service listens on endpoint e"`, `"text":"`,
	} {
		testenv.Has(t, string(text), part, "the program has")
	}
	if strings.Contains(string(text), "postgres://") {
		t.Errorf("the program has the server's environment: %s", text)
	}
	for name, want := range map[string]string{"loud": "program loud: exit status 3", "hang": "before its timeout"} {
		if got := b.alert(name); !strings.Contains(got.Error, want) || len(got.Error) > 1000 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for _, name := range []string{"page", "left"} {
		testenv.Same(t, b.messages(name)[0].State, alert.MessageDelivered, "%s", name)
	}
}
