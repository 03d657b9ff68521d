package alerts_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestWhatIsWrongWithARule(t *testing.T) {
	t.Parallel()
	const to = "to: {command: page}\n"
	for _, c := range []struct{ text, want string }{
		{"when: {runs: [paused]}\n" + to, ""},
		{to, "when: say of what it tells"},
		{"when: {runs: [lost]}\n" + to, `alert r:1:15: when.runs[0]: want one of completed, paused`},
		{"when: {health: bad}\n" + to, "alert r:1:16: when.health: want one of info, warning, critical"},
		{"when: {health: info}\n", "to: want one of webhook, slack"},
		{"when: {health: info}\nto: {command: page, slack: {secret: s}}\n", "to: want one of webhook, slack"},
		{"when: {health: info}\nto:\n  webhook: {url: nonsense, secret: s}\n", "alert r:3:18: to.webhook.url: want a URL"},
		{"when: {health: info}\nto: {webhook: {url: \"https://me:pass@h/\", secret: s}}\n",
			"a password has no place in a URL"},
		{"when: {health: info}\nto: {webhook: {url: \"https://h/\"}}\n", "to.webhook: it has no secret"},
		{"when: {health: info}\nto: {email: {to: [\"Ann <a@b.c>\"]}}\n", "to.email.to[0]: want an address"},
		{"when: {health: info}\nto: {email: {to: [\"a@b.c\\r\\nBcc: x@y.z\"]}}\n", "to.email.to[0]: want an address"},
		{"when: {health: info}\nwhom: me\n" + to, `unknown field "whom"`},
		{"name: a/b\nwhen: {health: info}\n" + to, "invalid name \"a/b\""},
		{"when: {health: info}\nwait: 2000h\n" + to, "wait: want a duration"},
		{"when: {health: info}\nquiet: {from: \"22:00\", to: \"24:00\"}\n" + to, "quiet.to: want a time of day"},
		{"when: {health: info}\nquiet: {from: \"22:00\", to: \"22:00\"}\n" + to, "quiet.to: it is the same"},
		{"when: {health: info}\nquiet: {from: \"22:00\", to: \"07:00\", zone: Mars}\n" + to,
			"quiet.zone: no time zone"},
	} {
		_, err := alerts.Parse("r", []byte(c.text))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s\nis %v; want %q", c.text, err, c.want)
		}
		if err != nil && strings.Contains(strings.SplitN(err.Error(), "\n", 2)[0], "pass@") {
			t.Errorf("a password is repeated: %v", err)
		}
	}
}

func TestQuietAt(t *testing.T) {
	t.Parallel()
	night := &alerts.Quiet{From: "22:00", To: "07:00", Zone: "Europe/Berlin"}
	noon := &alerts.Quiet{From: "12:00", To: "13:30", Zone: "UTC"}
	for _, c := range []struct {
		quiet *alerts.Quiet
		at    string
		want  bool
	}{
		{night, "2026-07-01T19:59:59Z", false}, {night, "2026-07-01T20:00:00Z", true}, {night, "2026-07-01T23:00:00Z", true},
		{night, "2026-07-01T05:00:00Z", false}, {night, "2026-01-01T05:59:59Z", true},
		{noon, "2026-01-01T12:00:00Z", true}, {noon, "2026-01-01T13:30:00Z", false}, {nil, "2026-01-01T13:00:00Z", false},
	} {
		at := testenv.Must(time.Parse(time.RFC3339, c.at))(t)
		testenv.Same(t, c.quiet.At(at), c.want, "%+v at %s", c.quiet, c.at)
	}
}
