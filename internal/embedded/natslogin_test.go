package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// Only who can read the file gets in, and it stays the same over restarts. Nobody is warned of it.
func TestNATSTakesThePasswordInTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "nats-url")
	core, warned := observer.New(zap.WarnLevel)
	config := NATSConfig{StoreDir: filepath.Join(dir, "nats"), URLFile: file, Log: zap.New(core)}
	ns := startNATS(t, config)
	if warned.Len() > 0 {
		t.Errorf("it warns: %v", warned.All())
	}
	written := readURL(t, file)
	for _, url := range []string{ns.URL(), strings.Replace(ns.URL(), "://", "://tranche:wrong@", 1)} {
		if nc, err := nats.Connect(url, nats.Timeout(limit)); err == nil {
			nc.Close()
			t.Errorf("%s is let in", url)
		}
	}
	if _, err := nats.Connect(ns.URL(), nats.Timeout(limit)); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without a password: %v", err)
	}
	if n := warned.FilterMessageSnippet("NATS_URL=$(cat " + file + ")").Len(); n != 1 || warned.Len() != 1 {
		t.Errorf("three refusals are told in %d lines, of which %d say what to do: %v", warned.Len(), n, warned.All())
	}
	nc, err := nats.Connect(ns.URL(), ns.Login(), nats.Timeout(limit))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	dial(t, written)
	restart(t, ns)
	dial(t, written)
	stopNATS(t, ns)
	config.Listen = strings.TrimPrefix(ns.URL(), "nats://")
	startNATS(t, config)
	if again := readURL(t, file); again != written {
		t.Error("the next server has another address or password")
	}
}

func readURL(t *testing.T, file string) string {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %s", file, info.Mode())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
