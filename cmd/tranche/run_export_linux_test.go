package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

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
