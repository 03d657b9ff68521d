package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testenv"
)

// natsOf runs a server by a configuration of the test's, on a free port.
func natsOf(t *testing.T, configuration string) (url string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	text := fmt.Sprintf("host: 127.0.0.1\nport: -1\n%s\n", strings.ReplaceAll(configuration, "DIR", t.TempDir()))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := natsserver.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	options.NoSigs, options.NoLog, options.AuthTimeout = true, true, time.Minute.Seconds()
	ns, err := natsserver.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	return ns.ClientURL()
}

const jetstreamOn = "jetstream { store_dir: \"DIR\" }\n"

// What cannot mend itself ends a start, with code 1 and the remedy.
func TestAStartEndsWithTheRemedy(t *testing.T) {
	t.Parallel()
	const users = "authorization { users: [{ user: u, password: right }] }\n"
	const accounts = "accounts { A: { users: [{ user: u, password: right }] }, B: { jetstream: enabled } }\n"
	in := func(url, user string) string { return strings.Replace(url, "://", "://"+user+"@", 1) }
	tests := map[string]struct {
		config string
		user   string
		args   []string
		says   []string
	}{
		"password": {config: jetstreamOn + users, user: "u:wrong",
			says: []string{"--nats", "refuses this user", "check the user and password", "127.0.0.1:"}},
		"no user":      {config: jetstreamOn + users, says: []string{"refuses this user", "--nats-creds"}},
		"no jetstream": {says: []string{"JetStream is not enabled at NATS at nats://127.0.0.1:", "nats-server -js"}},
		"account": {config: jetstreamOn + accounts, user: "u:right",
			says: []string{"not enabled for the account", "jetstream: enabled"}},
		"room": {config: "jetstream { store_dir: \"DIR\", max_file: 64MiB }",
			says: []string{"no room for the streams", "4.2 GiB (4496293888 bytes)", "max_file_store", "--work-max-bytes"}},
		"replicas": {config: jetstreamOn, args: []string{"--stream-replicas", "3"},
			says: []string{"single server", "3 are set", "--stream-replicas"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := natsOf(t, test.config)
			if test.user != "" {
				url = in(url, test.user)
			}
			ends(t, append([]string{"--database", testenv.Database(t), "--nats", url}, test.args...), test.says...)
		})
	}
}

// ends waits until a serve has ended with code 1, and looks whether it has said why.
func ends(t *testing.T, args []string, says ...string) {
	t.Helper()
	s := launch(t, false, args...)
	err := s.Wait()
	text := s.log.String()
	if err == nil || s.ProcessState.ExitCode() != cli.ExitOther {
		t.Errorf("it ended with %v: %s", err, text)
	}
	last := text[strings.LastIndex(strings.TrimRight(text, "\n"), "\n")+1:]
	for _, want := range says {
		if !strings.Contains(last, want) {
			t.Errorf("it does not say %q: %s", want, text)
		}
	}
	if strings.Contains(last, "wrong") {
		t.Errorf("it says the password: %s", text)
	}
}

func TestAStartRefusesOtherURLs(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	ends(t, []string{"--database", database, "--nats", "http://127.0.0.1:4222"}, `begins with \"http://\"`, "nats://",
		"--nats")
	ends(t, []string{"--database", "mysql://u:wrong@127.0.0.1/x"}, `begins with \"mysql://\"`, "postgres://", "--database")
	ends(t, []string{"--database", strings.Replace(database, "://", "://nobody_of_this_name:wrong@", 1)}, "--database")
}

// A first start that could not have its streams leaves the next one to say other things of them.
func TestTheNextFirstStart(t *testing.T) {
	t.Parallel()
	database, url := testenv.Database(t), natsOf(t, jetstreamOn)
	ends(t, []string{"--database", database, "--nats", url, "--stream-replicas", "3"}, "single server")
	s := launch(t, true, "--database", database, "--nats", url, "--stream-replicas", "1", "--work-max-bytes", "7MiB")
	b := &bench{T: t, url: s.where["api"]}
	b.want(b.tranche("streams"), 0, "replicas 1", "requests 7MiB")
	if _, err := s.End(t); err != nil {
		t.Error(err)
	}
}
