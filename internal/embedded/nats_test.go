package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func startNATS(t *testing.T, config NATSConfig) *NATS {
	t.Helper()
	if config.StoreDir == "" {
		config.StoreDir = filepath.Join(t.TempDir(), "nats")
	}
	if config.Listen == "" {
		port, release, err := QuietPort(t.Context())
		noError(t, err)
		t.Cleanup(release)
		config.Listen = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	ns := must(StartNATS(t.Context(), config))(t)
	t.Cleanup(func() { stopNATS(t, ns) })
	return ns
}

func stopNATS(t *testing.T, ns *NATS) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	same(t, ns.Stop(ctx), nil, "the stop")
}

func dial(t *testing.T, url string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc := must(nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.Timeout(limit)))(t)
	t.Cleanup(nc.Close)
	js := must(jetstream.New(nc, jetstream.WithDefaultTimeout(limit)))(t)
	return nc, js
}

func setUpStream(t *testing.T, js jetstream.JetStream, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	noError(t, makeStream(ctx, js, name, "first"))
}

// takes reports whether a stream, which is made if need be, takes a message soon. However often it is asked, there is
// one such message.
func takes(ctx context.Context, js jetstream.JetStream, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	return makeStream(ctx, js, name, "again") == nil
}

func makeStream(ctx context.Context, js jetstream.JetStream, name, message string) error {
	config := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}}
	if _, err := js.CreateOrUpdateStream(ctx, config); err != nil {
		return err
	}
	_, err := js.Publish(ctx, name+".x", []byte("hello"), jetstream.WithMsgID(message))
	return err
}

func messages(t *testing.T, js jetstream.JetStream, name string) uint64 {
	t.Helper()
	stream := must(js.Stream(t.Context(), name))(t)
	return stream.CachedInfo().State.Msgs
}

func TestNATSServesJetStreamAndRestartsInPlace(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, NATSConfig{MaxPayload: 2 << 20})
	url := ns.URL()
	nc, js := dial(t, url)
	same(t, nc.MaxPayload(), 2<<20, "max payload")
	setUpStream(t, js, "S")
	restart(t, ns)
	same(t, ns.URL(), url, "the address after a restart")
	// It may not have noticed yet that it was ever away.
	eventually(t, limit, "the client is back", func() bool {
		return nc.Stats().Reconnects > 0 && nc.IsConnected()
	})
	same(t, messages(t, js, "S"), 1, "messages after a restart")
	stopNATS(t, ns)
	stopNATS(t, ns) // safe twice
	if err := ns.Restart(t.Context()); err == nil {
		t.Error("restarted after Stop")
	}
}

func restart(t *testing.T, ns *NATS) {
	t.Helper()
	eventually(t, limit, "a restart", func() bool {
		err := ns.Restart(t.Context())
		if err != nil && !strings.Contains(err.Error(), "already in use") { // by another process, for a moment
			t.Fatal(err)
		}
		return err == nil
	})
}

func TestNATSNamesATakenPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer taken.Close()
	store := filepath.Join(t.TempDir(), "nats")
	_, err = StartNATS(t.Context(), NATSConfig{StoreDir: store, Listen: taken.Addr().String()})
	_ = as[*ListenError](t, err)
	mustSay(t, err, taken.Addr().String(), "--nats-listen", "address already in use")
	startNATS(t, NATSConfig{StoreDir: store}) // its lock was given back
}

func TestNATSStaysOnThisMachine(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{
		"0.0.0.0:4222", ":4222", "192.0.2.1:4222", "example.com:4222", "127.0.0.1", "127.0.0.1:x",
	} {
		_, err := StartNATS(t.Context(), NATSConfig{StoreDir: t.TempDir(), Listen: addr})
		_ = as[*ListenError](t, err)
	}
}

func TestNATSLocksItsStore(t *testing.T) {
	t.Parallel()
	store := filepath.Join(t.TempDir(), "nats")
	startNATS(t, NATSConfig{StoreDir: store})
	_, err := StartNATS(t.Context(), NATSConfig{StoreDir: store, Listen: "127.0.0.1:0"})
	_ = as[*LockedError](t, err)
	mustSay(t, err, store)
}

// revivalLimit bounds what a run loses when its streams are deleted: ten times what a slow machine takes.
const revivalLimit = time.Minute

func TestNATSComesBackFromADeletedStore(t *testing.T) {
	t.Parallel()
	for name, wreck := range map[string]func(store string) error{
		"whole store":         os.RemoveAll,
		"jetstream directory": func(store string) error { return os.RemoveAll(jetstreamDir(store)) },
		"replaced by an empty one": func(store string) error {
			return errors.Join(os.RemoveAll(store), os.Mkdir(store, 0o700))
		},
		"account": func(store string) error {
			return os.RemoveAll(filepath.Join(jetstreamDir(store), "$G"))
		},
		"one stream": func(store string) error {
			return os.RemoveAll(filepath.Dir(streamDir(store, "S")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, logs := observed()
			ns := startNATS(t, NATSConfig{Log: log})
			url := ns.URL()
			_, js := dial(t, url)
			for _, stream := range []string{"S", "OTHER"} {
				setUpStream(t, js, stream)
			}
			// The watch has to have seen the streams before it can miss them.
			eventually(t, revivalLimit, "the streams are known", func() bool {
				ns.mu.Lock()
				defer ns.mu.Unlock()
				return ns.store.streams["S"] && ns.store.streams["OTHER"]
			})
			noError(t, wreck(ns.config.StoreDir))
			begun := time.Now()
			eventually(t, revivalLimit, "a restart", func() bool { // and not only the attempt: the old server takes messages too
				return logs.FilterMessage("NATS server is ready").Len() >= 2
			})
			eventually(t, revivalLimit, "the stream takes messages", func() bool {
				return takes(t.Context(), js, "S")
			})
			t.Logf("usable after %s", time.Since(begun).Round(time.Millisecond))
			same(t, messages(t, js, "S"), 1, "messages of the stream: the new one only")
			_, err := os.Stat(streamDir(ns.config.StoreDir, "S"))
			same(t, err, nil, "the stream on disk")
			if name == "one stream" && messages(t, js, "OTHER") != 1 {
				t.Error("the other stream was lost too")
			}
			same(t, ns.URL(), url, "the address")
		})
	}
}

func TestNATSComesBackWhenJetStreamWasDisabled(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, NATSConfig{})
	_, js := dial(t, ns.URL())
	setUpStream(t, js, "S")
	ns.mu.Lock()
	err := ns.server.DisableJetStream()
	ns.mu.Unlock()
	noError(t, err)
	eventually(t, revivalLimit, "the stream takes messages", func() bool {
		return takes(t.Context(), js, "S")
	})
	same(t, messages(t, js, "S"), 2, "messages of the stream: the old one and the new")
}

func TestNATSLeavesStreamsAloneThatAClientDeletes(t *testing.T) {
	t.Parallel()
	log, logs := observed()
	ns := startNATS(t, NATSConfig{Log: log})
	_, js := dial(t, ns.URL())
	known := func(want bool) func() bool {
		return func() bool {
			ns.mu.Lock()
			defer ns.mu.Unlock()
			return ns.store.streams["S"] == want
		}
	}
	for range 3 {
		setUpStream(t, js, "S")
		eventually(t, revivalLimit, "the stream is known", known(true))
		noError(t, js.DeleteStream(t.Context(), "S"))
		eventually(t, revivalLimit, "the stream is forgotten", known(false))
	}
	same(t, logs.FilterMessage("restarting the NATS server").Len(), 0, "restarts")
}

func TestNATSConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]NATSConfig{
		"StoreDir":   {},
		"MaxPayload": {StoreDir: "x", MaxPayload: 65 << 20},
	} {
		if _, err := StartNATS(t.Context(), config); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			mustSay(t, err, name)
		}
	}
}

// Only who can read the file gets in, and it stays the same over restarts. No one is warned of it.
func TestNATSTakesThePasswordInTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "nats-url")
	core, warned := observer.New(zap.WarnLevel)
	config := NATSConfig{StoreDir: filepath.Join(dir, "nats"), URLFile: file, Log: zap.New(core)}
	ns := startNATS(t, config)
	same(t, warned.Len(), 0, "warnings, %v", warned.All())
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
	nc := must(nats.Connect(ns.URL(), ns.Login(), nats.Timeout(limit)))(t)
	nc.Close()
	dial(t, written)
	restart(t, ns)
	dial(t, written)
	stopNATS(t, ns)
	config.Listen = strings.TrimPrefix(ns.URL(), "nats://")
	startNATS(t, config)
	same(t, readURL(t, file), written, "the address and password of the next server")
}

func readURL(t *testing.T, file string) string {
	t.Helper()
	info := must(os.Stat(file))(t)
	same(t, info.Mode().Perm(), 0o600, "the mode of %s", file)
	text := must(os.ReadFile(file))(t)
	return strings.TrimSpace(string(text))
}

// A port stays with whoever has it until it is released, also while no service listens there.
func TestQuietPortsAreHeld(t *testing.T) {
	t.Parallel()
	port, release, err := QuietPort(t.Context())
	noError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	if other, err := hold(t.Context(), address); err == nil {
		other()
		t.Errorf("%s is given away twice", address)
	}
	release()
	eventually(t, limit, "a port is free after its release", func() bool { // what is being started has it for a moment
		again, err := hold(t.Context(), address)
		if err == nil {
			again()
		}
		return err == nil
	})
}

// A program that is being started has all sockets of this one for a moment, also those that are closed meanwhile.
func TestPortsAreFreeWhileProgramsStart(t *testing.T) {
	t.Parallel()
	if err := exec.CommandContext(t.Context(), "true").Run(); err != nil { // before the first, Go starts one on trial
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "true").Run() // the last ones are ended in the midst of it
			}
		})
	}
	defer starting.Wait()
	defer cancel()
	for range 300 {
		port, release, err := QuietPort(ctx)
		noError(t, err)
		address := fmt.Sprintf("127.0.0.1:%d", port)
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address) // at once, as a server does
		noError(t, err)
		_ = listener.Close()
		noError(t, checkFree(ctx, address)) // after it was closed
		release()
	}
}

// TestStreamsAreEncrypted looks for a message in the files of a server without a key, and then with one, twice.
//
// PROOF: who may do what, 26.
func TestStreamsAreEncrypted(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "nats")
	for _, key := range []string{"", "key", "key"} {
		ns := startNATS(t, NATSConfig{StoreDir: dir, Listen: "127.0.0.1:0", Key: func() (string, error) { return key, nil }})
		_, js := dial(t, ns.URL())
		setUpStream(t, js, "S")
		must(js.CreateOrUpdateConsumer(t.Context(), "S", jetstream.ConsumerConfig{Durable: "C"}))(t)
		must(js.Publish(t.Context(), "S.x", []byte("canary"), jetstream.WithMsgID("canary")))(t)
		same(t, messages(t, js, "S"), 2, "messages with key %q", key)
		stopNATS(t, ns)
		var seen bool
		noError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				seen = seen || strings.Contains(string(must(os.ReadFile(path))(t)), "canary")
			}
			return err
		}))
		same(t, seen, key == "", "with key %q the message is in the files", key)
	}
}
