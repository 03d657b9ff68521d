package endpoints

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// setupByEnvironment is setup with a server that wants a password, which the environment says, as it does the address.
func setupByEnvironment(t *testing.T) *bundle {
	t.Helper()
	b := setup(t, own)
	b.stop()
	b.opts.Username, b.opts.Password = "u", "p"
	b.start()
	t.Setenv("NATS_URL", "nats://"+b.server.Addr().String())
	t.Setenv("NATS_USER", "u")
	t.Setenv("NATS_PASSWORD", "p")
	return b
}

func TestConnectHonoursTheEnvironment(t *testing.T) { // t.Setenv forbids t.Parallel
	setupByEnvironment(t)
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
	check(t, os.WriteFile(filepath.Join(dir, "bank.json"), []byte(`{"url":"`+b.url+`"}`), 0o600))
	nc, err := Connect()
	check(t, err)
	defer nc.Close()
	eventually(t, "it is connected", nc.IsConnected)
}

func TestLogToTellsOfDeniedPermissions(t *testing.T) {
	t.Parallel()
	b := setup(t, own)
	b.stop()
	b.opts.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Deny: []string{"secret"}}}}}
	b.start()
	core, logged := observer.New(zap.DebugLevel)
	nc, err := nats.Connect(b.server.ClientURL(), nats.UserInfo("u", "p"), LogTo(zap.New(core)), nats.Timeout(patience))
	check(t, err)
	defer nc.Close()
	check(t, nc.Publish("secret", nil))
	eventually(t, "the denial is logged", func() bool { return logged.FilterMessageSnippet("denies").Len() == 1 })
}

// A server that starts may refuse users for a while: the service that says who they are is not up yet.
func TestConnectGoesOnWhenItIsRefused(t *testing.T) {
	b := setupByEnvironment(t)
	var refused atomic.Int64
	core, logged := observer.New(zap.DebugLevel)
	nc, err := Connect(LogTo(zap.New(core)), func(o *nats.Options) error {
		tell := o.AsyncErrorCB
		o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrAuthorization) {
				refused.Add(1)
			}
			tell(nc, sub, err)
		}
		return nil
	})
	check(t, err)
	defer nc.Close()
	eventually(t, "it is connected", nc.IsConnected)
	b.stop()
	b.opts.Password = "another"
	b.start()
	eventually(t, "it has been refused again and again, or has given up", func() bool {
		return refused.Load() >= 3 || nc.IsClosed()
	})
	if nc.IsClosed() {
		t.Fatalf("the connection is closed permanently: %v", nc.LastError())
	}
	b.stop()
	b.opts.Password = "p"
	b.start()
	eventually(t, "it is connected again", nc.IsConnected)
	if n := logged.FilterMessageSnippet("refuses this user").Len(); n != 1 {
		t.Errorf("%d refusals were logged; want the first only", n)
	}
}

// Servers that refuse log each try; those that are not there are to be found again at once.
func TestServersThatRefuseAreTriedMoreSeldom(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.DebugLevel)
	var o nats.Options
	check(t, LogTo(zap.New(core))(&o))
	nc := &nats.Conn{}
	for tries, millis := range []int{250, 250, 500, 1000, 2000, 4000, 4000} {
		if tries > 0 {
			o.ReconnectErrCB(nc, nats.ErrAuthorization)
		}
		shortest := time.Duration(millis) * time.Millisecond
		if wait := o.CustomReconnectDelayCB(tries); wait < shortest || wait > shortest+reconnectWait/2 {
			t.Errorf("after %d refusals the next try waits %v, want %v or a little more", tries, wait, shortest)
		}
	}
	o.ReconnectErrCB(nc, nats.ErrNoServers)
	if wait := o.CustomReconnectDelayCB(9); wait > 2*reconnectWait {
		t.Errorf("the next try at a server that is not there waits %v", wait)
	}
	if n := logged.FilterMessageSnippet("NATS_URL=$(cat DIR/nats-url)").Len(); n != 2 || logged.Len() != 2 {
		t.Errorf("%d lines of which %d say what to do; want one for each of the two troubles", logged.Len(), n)
	}
}

// The server that serve runs is found in its data directory, with the password for it, which no other server is told.
func TestConnectToTheLocalServer(t *testing.T) {
	b := setup(t, own)
	b.stop()
	b.opts.Username, b.opts.Password = "tranche", "secret"
	b.start()
	at, dir := b.server.Addr().String(), t.TempDir()
	t.Setenv("TRANCHE_DATA_DIR", dir)
	t.Setenv("NATS_URL", "nats://"+at)
	early, err := Connect(nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	check(t, err)
	defer early.Close()
	if early.IsConnected() {
		t.Error("let in without a password")
	}
	check(t, os.WriteFile(filepath.Join(dir, "nats-url"), []byte("nats://tranche:secret@"+at+"\n"), 0o600))
	eventually(t, "it is let in once there is a file", early.IsConnected)
	for _, url := range []string{"", "nats://" + at, at} {
		t.Setenv("NATS_URL", url)
		nc, err := Connect()
		check(t, err)
		eventually(t, "it is connected", nc.IsConnected)
		nc.Close()
	}
	for _, url := range []string{"127.0.0.1:1", "nats://10.0.0.1:4222", "nats://u:p@" + at, at + "," + at} {
		o := nats.Options{Url: url}
		check(t, localLogin(&o))
		if o.UserInfo == nil {
			continue
		}
		if user, password := o.UserInfo(); user != "" || password != "" {
			t.Errorf("%s is told the password", url)
		}
	}
}
