package endpoints

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestConnectHonoursTheEnvironment(t *testing.T) { // t.Setenv forbids t.Parallel
	b := setup(t)
	b.stop()
	b.opts.Username, b.opts.Password = "u", "p"
	b.start()
	t.Setenv("NATS_URL", "nats://"+b.server.Addr().String())
	t.Setenv("NATS_USER", "u")
	t.Setenv("NATS_PASSWORD", "p")
	nc, err := Connect()
	check(t, err)
	defer nc.Close()
	eventually(t, "it is connected", nc.IsConnected)
	t.Setenv("NATS_NKEY", filepath.Join(t.TempDir(), "no.seed"))
	if _, err := Connect(); err == nil || !strings.Contains(err.Error(), "no.seed") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestConnectByContext(t *testing.T) {
	b := setup(t)
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("NATS_URL", "")
	t.Setenv("NATS_CONTEXT", "bank")
	if _, err := Connect(); err == nil {
		t.Error("a missing context was taken")
	}
	dir := filepath.Join(home, "nats", "context")
	check(t, os.MkdirAll(dir, 0o700))
	check(t, os.WriteFile(filepath.Join(dir, "bank.json"), []byte(`{"url":"`+b.server.ClientURL()+`"}`), 0o600))
	nc, err := Connect()
	check(t, err)
	defer nc.Close()
	eventually(t, "it is connected", nc.IsConnected)
}

func TestLogToTellsOfDeniedPermissions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stop()
	b.opts.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Deny: []string{"secret"}}}}}
	b.start()
	core, logged := observer.New(zap.DebugLevel)
	nc, err := nats.Connect(b.server.ClientURL(), nats.UserInfo("u", "p"), LogTo(zap.New(core)))
	check(t, err)
	defer nc.Close()
	check(t, nc.Publish("secret", nil))
	eventually(t, "the denial is logged", func() bool { return logged.FilterMessageSnippet("denies").Len() == 1 })
}
