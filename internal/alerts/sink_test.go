package alerts_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// The audit log is carried away in order, from where it was; what a receiver does not take is sent again.
func TestTheAuditLogIsCarriedAway(t *testing.T) {
	t.Parallel()
	heard := make(chan string, 9)
	tcp := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = tcp.Close() })
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			text, _ := io.ReadAll(conn)
			_ = conn.Close()
			heard <- string(text)
		}
	}()
	udp := testenv.Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = udp.Close() })
	unknown := httptest.NewTLSServer(nil)
	t.Cleanup(unknown.Close)
	file := filepath.Join(t.TempDir(), "audit.ndjson")
	b := storetest.Setup(t)
	operator, hook := withReceiver(t, 503, 200)
	receivers := testenv.Must(alerts.NewReceivers(alerts.Config{Connections: operator.conns,
		Transport: http.DefaultTransport}))(t)
	carry := func(target string) error {
		t.Helper()
		b.Exec(`INSERT INTO audit_log (actor, action) VALUES ('ann', 'x')`)
		testenv.NoError(t, retention.New(b.Store).SealAudit(t.Context()))
		_, err := testenv.Must(alerts.NewSink(b.Store, target, "hooks", receivers))(t).Run(t.Context(), b.Lead())
		return err
	}
	testenv.NoError(t, carry("syslog://"+tcp.Addr().String()))
	frame := regexp.MustCompile(`^(\d+) (<109>1 \d{4}-\S+Z \S+ tranche \d+ audit - ` +
		`\{"id":1,.*"seal":1,"hash":"[0-9a-f]{64}"\})$`)
	text := <-heard
	if parts := frame.FindStringSubmatch(text); len(parts) != 3 || strconv.Itoa(len(parts[2])) != parts[1] {
		t.Errorf("by TCP came %q", text)
	}
	for target, says := range map[string]string{"syslog+tls://" + unknown.Listener.Addr().String(): "certificate",
		"file:///no/such/directory/file": "no such", "syslog://127.0.0.1:1": "refused"} {
		testenv.Says(t, carry(target), says, "%s", target)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_sink WHERE seal = 1 AND error <> ''`), 1, "says why it stands")
	testenv.NoError(t, carry("syslog+udp://"+udp.LocalAddr().String()))
	datagram := make([]byte, 65536)
	n, _, err := udp.ReadFrom(datagram)
	if err != nil || !strings.HasPrefix(string(datagram[:n]), "<109>1 ") ||
		!strings.Contains(string(datagram[:n]), `"seal":2,`) {
		t.Errorf("by UDP came %q, %v", datagram[:n], err)
	}
	testenv.NoError(t, carry("file://"+file))
	if text := string(testenv.Must(os.ReadFile(file))(t)); strings.Count(text, "\n") != 1 ||
		!strings.Contains(text, `"seal":6,`) {
		t.Errorf("the file has %q", text)
	}
	testenv.Says(t, carry(hook.URL+"/audit"), "answers 503", "a webhook that refuses")
	testenv.NoError(t, carry(hook.URL+"/audit"))
	b.Exec(`INSERT INTO audit_log (actor, action, detail) SELECT 'ann', 'x', jsonb_build_object('x', repeat('x', 300000))
		FROM generate_series(1, 2)`)
	testenv.NoError(t, carry(hook.URL+"/audit"))
	hook.mu.Lock()
	defer hook.mu.Unlock()
	if got := hook.got[1].Header; got.Get("webhook-id") != "audit-7-8" || got.Get("webhook-signature") == "" ||
		!strings.Contains(string(hook.bodies[1]), `"type":"audit"`) ||
		!strings.Contains(string(hook.bodies[1]), `"seal":8,`) {
		t.Errorf("the webhook got %v %s", got, hook.bodies[1])
	}
	testenv.Same(t, hook.got[2].Header.Get("webhook-id"), "audit-9-9",
		"of large entries only some, to limit the message; its ID")
	_, err = alerts.NewSink(b.Store, hook.URL, "none", receivers)
	testenv.Says(t, err, "knows no secret", "a webhook without one")
	for _, target := range []string{"", "ftp://x", "syslog://host", "file:relative", "syslog://u:p@h:1",
		"syslog+tls://h:1/x", "https://h/x?key=y", "http://192.0.2.1/x"} {
		_, err := alerts.NewSink(b.Store, target, "", receivers)
		testenv.Says(t, err, "syslog+tls://HOST:6514", "%q", target)
	}
}
