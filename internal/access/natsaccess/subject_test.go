package natsaccess_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// What docs/protocol.md says of a pull by hand holds between accounts, too: what comes has the subject of requests, and
// what is said of the pull that of the inbox.
func TestPullsByHand(t *testing.T) {
	t.Parallel()
	form := forms(t)["nkeys"]
	server := testenv.NATSByConfig(t, form.config)
	js := prepare(t, testenv.Dial(t, server.URL(), form.user("node")), "accounts", "statement")
	testenv.Must(js.Publish(t.Context(), "tranche.work.accounts", []byte("work")))(t)
	testenv.Must(js.Publish(t.Context(), "tranche.work.statement", []byte("of another")))(t)
	nc := testenv.Dial(t, server.URL(), form.user("accounts"))
	stolen := testenv.Must(nc.SubscribeSync("stolen"))(t)
	// Read as an acknowledgement without a domain, this is one for statement, which asks for the next request.
	err := nc.PublishRequest("$JS.ACK.TRANCHE_WORK.statement.TRANCHE_WORK.accounts.1.1.1", "stolen", []byte("+NXT"))
	testenv.NoError(t, err)
	inbox := nc.NewInbox()
	sub := testenv.Must(nc.SubscribeSync(inbox))(t)
	next := func() *nats.Msg { return testenv.Must(sub.NextMsg(patience))(t) }
	body := []byte(`{"batch":2,"expires":1000000000,"max_bytes":2000000}`)
	testenv.NoError(t, nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.TRANCHE_WORK.accounts", inbox, body))
	if work := next(); work.Subject != "tranche.work.accounts" || !strings.HasPrefix(work.Reply, "$JS.ACK.") {
		t.Errorf("work came to %s, to be acknowledged at %s", work.Subject, work.Reply)
	}
	if status := next(); status.Subject != inbox || status.Header.Get("Status") != "408" {
		t.Errorf("the end of the pull came to %s: %v", status.Subject, status.Header)
	}
	if msg, err := stolen.NextMsg(time.Millisecond); err == nil {
		t.Errorf("it got %q", msg.Data)
	}
}
