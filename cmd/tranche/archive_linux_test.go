package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const s3Server = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

// s3 starts an S3 server whose buckets are the folders of a directory. It returns the socket that it listens at.
func s3(t *testing.T, dir, secret string) (socket string, kill func()) {
	t.Helper()
	built := testenv.Must(exec.CommandContext(t.Context(), "../../scripts/tool.sh", s3Server).Output())(t)
	at := t.TempDir()
	socket = filepath.Join(at, "s3")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	server := exec.CommandContext(ctx, strings.TrimSpace(string(built)), "--quiet", "--port", socket, "posix", "--sidecar",
		at, dir)
	server.Env = append(testenv.PlainEnv(), "ROOT_ACCESS_KEY=key", "ROOT_SECRET_KEY="+secret)
	log := &testenv.Log{}
	server.Stdout, server.Stderr = log, log
	testenv.NoError(t, server.Start())
	ended := make(chan struct{})
	go func() {
		_ = server.Wait() // it is killed
		close(ended)
	}()
	kill = func() { cancel(); <-ended }
	t.Cleanup(kill)
	eventually(t, "the S3 server listens: "+log.String(), func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return socket, kill
}

// A run whose archive is of several parts stays while there is no bucket, its server refuses, is away, or dies in the
// middle, and goes once all of it is there. Nothing says the secret.
func TestARunIsArchivedInS3(t *testing.T) {
	t.Parallel()
	const items = 30
	dir, secret := t.TempDir(), "canary-of-the-archive"
	socket, kill := s3(t, dir, secret)
	stranger, _ := s3(t, dir, "another")
	proxy := testenv.NewProxy(t, socket)
	b := &bench{T: t, nats: testenv.NATS(t).URL(), database: testenv.Database(t)}
	s := launchIn(t, []string{"AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=" + secret, "AWS_REGION=us-east-1"}, true,
		"--database", b.database, "--nats", b.nats, "--archive", "s3://vault/a?endpoint=http://"+proxy.Addr())
	b.url = s.where["api"]
	svc := testenv.Must(endpoints.New(testenv.Dial(t, b.nats, nats.Name("pages")), endpoints.Config{Name: "pages",
		Version: "1.0.0"}))(t)
	testenv.NoError(t, endpoints.HandleEach(svc, "pages", func(_ context.Context, in struct {
		ID string `json:"id"`
	}) (*wire.Binary, error) {
		result, _ := page(in.ID)
		return result, nil
	}))
	testenv.Keep(t, t.Errorf, "the service", svc.Run)
	var given strings.Builder
	for i := range items {
		fmt.Fprintf(&given, "{\"id\":\"C-%d\"}\n", i)
	}
	b.want(b.pipe(given.String(), "run", "start", "--endpoint", "pages", "--items", "-", "--chunk", "5", "--wait"), 0)
	db := testenv.Connect(t, b.database)
	text := func(sql string) (found string) {
		t.Helper()
		testenv.NoError(t, db.QueryRow(t.Context(), sql).Scan(&found))
		return found
	}
	id := text(`UPDATE batchrun SET finished_at = finished_at - interval '2 hours' RETURNING id::text`)
	b.want(b.tranche("retention", "set", "runs", "--age", "1h"), 0)

	for _, fault := range []struct {
		says  string
		begin func()
	}{
		{"bucket does not exist", func() {}},
		{"signature", func() { proxy.Turn(stranger) }},
		{"127.0.0.1", func() { proxy.Cut() }},
		{"items.ndjson.gz", func() {
			testenv.NoError(t, os.Mkdir(filepath.Join(dir, "vault"), 0o700))
			proxy.Turn(socket)
			proxy.Heal()
			go func() {
				for t.Context().Err() == nil && size(dir) < 32<<20 { // the first part is there
				}
				kill()
			}()
		}},
	} {
		fault.begin()
		b.want(b.tranche("retention", "run"), 0)
		eventually(t, "it is noted: "+fault.says, func() bool {
			return strings.Contains(text(`SELECT coalesce(max(error), '') FROM archive`), fault.says)
		})
		testenv.Same(t, text(`SELECT count(*)::text FROM batchrun`), "1", "runs after the fault %s", fault.says)
	}
	testenv.Must(db.Exec(t.Context(), `UPDATE archive SET since = since - interval '1 hour'`))(t)
	b.wantSoon([]string{"health"}, "Archiving to s3://vault/a")
	socket, _ = s3(t, dir, secret)
	proxy.Turn(socket)
	b.want(b.tranche("retention", "run"), 0)
	eventually(t, "the run is gone, and all is well", func() bool {
		return text(`SELECT (SELECT count(*) FROM batchrun) || error FROM archive`) == "0"
	})
	b.want(b.tranche("run", "show", id), 7, "age 1h0m0s; archived in s3://vault/a")

	found := testenv.Must(filepath.Glob(filepath.Join(dir, "vault/a/*/runs", id, "*/manifest.json")))(t)
	testenv.MustSame(t, len(found), 1, "manifests")
	var manifest struct {
		Objects []struct{ Name, SHA256 string }
	}
	testenv.NoError(t, json.Unmarshal(testenv.Must(os.ReadFile(found[0]))(t), &manifest))
	for _, o := range manifest.Objects {
		sum := sha256.Sum256(testenv.Must(os.ReadFile(filepath.Join(filepath.Dir(found[0]), o.Name)))(t))
		testenv.Same(t, hex.EncodeToString(sum[:]), o.SHA256, "the hash of %s", o.Name)
	}
	file := testenv.Must(os.Open(filepath.Join(filepath.Dir(found[0]), "items.ndjson.gz")))(t)
	defer func() { _ = file.Close() }()
	lines := json.NewDecoder(testenv.Must(gzip.NewReader(file))(t))
	for i := range items {
		var line struct {
			Key     string
			Payload struct{ ID string }
			Result  json.RawMessage
			Bytes   []byte `json:"result_bytes"`
		}
		testenv.NoError(t, lines.Decode(&line))
		testenv.Same(t, line.Payload.ID, line.Key, "the payload's ID")
		want, _ := page(fmt.Sprint("C-", i))
		if string(line.Bytes)+string(line.Result) != string(want.Data) {
			t.Errorf("%s has %d and %d bytes, and not its %d", line.Key, len(line.Bytes), len(line.Result), len(want.Data))
		}
	}
	testenv.NoError(t, s.stop())
	if strings.Contains(s.log.String(), secret) {
		t.Error("the log has the secret")
	}
}

// size is how much the files below a directory have.
func size(dir string) (all int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error { // files come and go
		if err == nil {
			if info, err := entry.Info(); err == nil {
				all += info.Size()
			}
		}
		return nil
	})
	return all
}

// page is the large result of an item, by its key, and the file that it is exported to.
func page(key string) (result *wire.Binary, file string) {
	types := []struct{ mime, ext string }{{"application/pdf", "pdf"}, {"image/png", "png"}, {"application/json", "json"},
		{"application/pdf; version=1.7", "pdf"}}
	var n int
	_, _ = fmt.Sscanf(key, "C-%d", &n) // 0 is as good
	kind := types[n%len(types)]
	data := make([]byte, 3<<20+n*1000)
	source := rand.NewChaCha8(sha256.Sum256([]byte(key)))
	_, _ = source.Read(data) // never fails
	if kind.ext == "json" {
		data = fmt.Appendf(nil, `{"pages":"%x"}`, data[:len(data)/2])
	}
	return &wire.Binary{ContentType: kind.mime, Data: data}, key + "." + kind.ext
}

// Results of several MB each are exported to files, each under the name of its type, in memory that holds a few of
// them: neither the command nor the server has them all.
func TestLargeResultsAreExportedToFiles(t *testing.T) {
	t.Parallel()
	const items, bound = 36, 100 << 20
	b := setup(t)
	svc, err := endpoints.New(testenv.Dial(t, b.nats, nats.Name("pages")), endpoints.Config{Name: "pages",
		Version: "1.0.0"})
	if err == nil {
		err = endpoints.HandleEach(svc, "pages", func(_ context.Context, in struct {
			ID string `json:"id"`
		},
		) (*wire.Binary, error) {
			result, _ := page(in.ID)
			return result, nil
		})
	}
	testenv.NoError(t, err)
	testenv.Keep(t, t.Errorf, "the service", svc.Run)
	var given strings.Builder
	for i := range items {
		fmt.Fprintf(&given, "{\"id\":\"C-%d\"}\n", i)
	}
	b.want(b.pipe(given.String(), "run", "start", "--endpoint", "pages", "--items", "-", "--chunk", "5", "--wait"), 0)
	dir := filepath.Join(t.TempDir(), "out")
	cmd := command(t, []string{"TRANCHE_URL=" + b.url}, "run", "export", "last", "--dir", dir, "--name", "{key}.{ext}")
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	testenv.NoError(t, cmd.Start())
	peak := watchMemory(cmd.Process.Pid)
	testenv.MustSame(t, cmd.Wait(), nil, "%s", text.String())
	used := peak()
	sum := 0
	for i := range items {
		want, name := page(fmt.Sprint("C-", i))
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want.Data) {
			t.Errorf("%s has %d bytes, %v; want %d", name, len(got), err, len(want.Data))
		}
		sum += len(got)
	}
	testenv.Same(t, len(testenv.Must(os.ReadDir(dir))(t)), items+1, "files, with the index")
	t.Logf("%d MB in files; the command took %d MiB at most", sum/1e6, used>>20)
	if used == 0 || used > bound || sum < bound {
		t.Errorf("the command took %d MiB for %d; want at most %d", used>>20, sum>>20, bound>>20)
	}
}

// watchMemory reads the most memory that a process has had, repeatedly; what it returns waits until the process
// ended and gives the last reading, in bytes. What wait says of that counts who started it, too.
func watchMemory(pid int) (peak func() int) {
	read := make(chan int)
	go func() {
		most := 0
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, after, found := strings.Cut(string(status), "VmHWM:")
			if err != nil || !found {
				read <- most
				return
			}
			var kilobytes int
			_, _ = fmt.Sscan(after, &kilobytes) // it is a number
			most = kilobytes << 10
			<-tick.C
		}
	}()
	return func() int { return <-read }
}
