package systest

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Both proxies of docs/operate/deploy.md, with the configuration that stands there, pass a large upload, a key with a
// slash, and events as they happen.
func TestProxiesOfTheDocs(t *testing.T) {
	t.Parallel()
	binary := testenv.Program(t, root)
	for name, args := range map[string][]string{"nginx": {"-g", "daemon off;", "-c"}, "haproxy": {"-db", "-f"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := up(t, binary, testenv.Database(t), testenv.NATS(t).URL(), nil, "--trusted-proxies", "127.0.0.1/32",
				"--allow-host", "tranche.example.com")
			client := behind(t, name, args, strings.TrimPrefix(s.url, "http://"))
			ask := func(method, path, body string) io.Reader {
				req := testenv.Must(http.NewRequestWithContext(t.Context(), method, "https://tranche.example.com/api/v1"+path,
					strings.NewReader(body)))(t)
				req.Header.Set("Content-Type", "text/csv")
				answer, err := client.Do(req)
				testenv.NoError(t, err)
				t.Cleanup(func() { _ = answer.Body.Close() })
				if answer.StatusCode >= 300 {
					t.Fatalf("%s %s: %s", method, path, answer.Status)
				}
				return answer.Body
			}
			var started struct{ Run string }
			items := []byte("id,v\na/b,1\n")
			for i := range 3000 { // nginx's own limit is 1 MiB
				items = fmt.Appendf(items, "k%d,%01000d\n", i, i)
			}
			testenv.NoError(t, json.NewDecoder(ask("POST", "/runs?endpoint=e", string(items))).Decode(&started))
			ask("GET", "/runs/"+started.Run+"/items/a%2Fb", "")
			events := bufio.NewScanner(ask("GET", "/runs/"+started.Run+"/events", ""))
			for events.Scan() && events.Text() != "event: run" {
			}
			if events.Text() != "event: run" {
				t.Errorf("no event: %v", events.Err())
			}
		})
	}
}

// behind starts a proxy with its section of the page for a node, and returns a client that reaches any host through it.
func behind(t *testing.T, name string, args []string, node string) *http.Client {
	t.Helper()
	page := string(testenv.Must(os.ReadFile(filepath.Join(root, "docs/operate/deploy.md")))(t))
	section := regexp.MustCompile("(?s)```" + name + "\n(.*?)```").FindStringSubmatch(page)
	if section == nil {
		t.Fatalf("deploy.md has no configuration of %s", name)
	}
	ca := newAuthority(t, "ca")
	cert, key := ca.certify(t, "tranche.example.com")
	both := filepath.Join(ca.dir, "both.pem")
	write(t, both, append(testenv.Must(os.ReadFile(cert))(t), testenv.Must(os.ReadFile(key))(t)...))
	at := testenv.QuietAddr(t)
	text := regexp.MustCompile(`(?m)^.*10\.0\.0\.[23]:.*\n`).ReplaceAllString(section[1], "")
	text = strings.NewReplacer("10.0.0.1:8480", node, "listen 443", "listen "+at, "bind :443", "bind "+at,
		"/etc/nginx/tranche.pem", cert, "/etc/nginx/tranche-key.pem", key, "/etc/haproxy/tranche.pem", both).Replace(text)
	if name == "nginx" {
		text = "pid " + ca.dir + "/pid; error_log stderr; events {}\nhttp { access_log off;\n" + text + "}\n"
	}
	config := filepath.Join(ca.dir, name+".conf")
	write(t, config, []byte(text))
	program, err := exec.LookPath(name)
	if err != nil {
		program = "/usr/sbin/" + name
	}
	var said testenv.Log
	cmd := exec.Command(program, append(args, config)...)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run scripts/deps.sh ship", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, said.String())
		}
	})
	testenv.Until(t, time.Minute, name+" listens", func() bool {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", at)
		}}}
}
