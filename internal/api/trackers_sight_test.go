package api_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
)

// A webhook's URL may hold a secret, and a receiver may repeat it: viewers are told whose it is, operators all of it,
// and the audit log and the node's log nothing that is secret.
func TestViewersSeeWhoseAWebhookIs(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const origin, secret = "https://api.bank.example", "T0PSECRET"
	dir := t.TempDir()
	key := []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "hooks.key"), key, 0o600))
	conns := testenv.Must(connections.Parse(filepath.Join(dir, "connections.yaml"),
		[]byte("secrets: {hooks: {file: hooks.key, hosts: ["+origin+"]}}")))(t)
	service, ann := trackers.New(b.Store, trackers.Config{Connections: conns}), trackers.Caller{Actor: "ann"}
	open := trackerclient.BatchSettings{Owner: "o", Key: "k", Webhook: &trackerclient.WebhookSettings{
		URL: origin + "/hooks/" + secret + "?key=" + secret, Secret: "hooks"}}
	opened := testenv.Must(service.Open(t.Context(), open, ann))(t)
	testenv.Must(b.Pool.Exec(t.Context(), `UPDATE tracker_service SET webhook_error = E'it answers 404\nno /' || $1`,
		secret))(t)
	locked := b.Locked()
	as := func(role access.Role, path string) string {
		code, text := b.Ask(http.MethodGet, api.Prefix+path, nil, "Authorization",
			"Bearer "+b.Token(string(role)+path, role, time.Hour).Secret)
		if code != http.StatusOK || !strings.Contains(string(text), origin) {
			t.Errorf("%s: %s is answered %d %s", role, path, code, text)
		}
		return string(text)
	}
	for _, path := range []string{"/trackers", "/trackers/" + opened.ID} {
		if text := as(access.Viewer, path); strings.Contains(text, secret) || !strings.Contains(text, `"it answers 404"`) {
			t.Errorf("a viewer sees %s", text)
		}
		for _, role := range []access.Role{access.Operator, access.Admin} {
			if text := as(role, path); !strings.Contains(text, open.Webhook.URL) ||
				!strings.Contains(text, `"it answers 404: no /`+secret) {
				t.Errorf("%s sees %s", role, text)
			}
		}
	}
	if text := as(access.Admin, "/audit"); strings.Contains(text, secret) {
		t.Errorf("the audit log tells %s", text)
	}
	open.Webhook.URL += "2"
	if _, err := service.Open(t.Context(), open, ann); err == nil ||
		strings.Contains(err.Error(), secret) {
		t.Errorf("who opens it with another URL is told %v", err)
	}
	for _, entry := range locked.Log.All() {
		if strings.Contains(entry.Message, secret) {
			t.Errorf("the log has %s", entry.Message)
		}
	}
}
