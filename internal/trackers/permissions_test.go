package trackers_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access/natsaccess"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
)

// With the configuration of docs/security.md the application may ask, the node answers it, and a service may not ask.
func TestWithTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	system := testenv.Must(natsaccess.New(natsaccess.Roles{Trackers: []string{"web"},
		Services: []natsaccess.Grant{{Name: "accounts", To: []string{"accounts"}}}}))(t)
	config := system.Conf(nil)
	for _, m := range regexp.MustCompile(`password: \$(\w+)`).FindAllStringSubmatch(config, -1) {
		config = m[1] + ": secret\n" + config
	}
	server := testenv.NATSByConfig(t, config)
	conn := func(user string) *nats.Conn {
		return testenv.Dial(t, server.URL(), nats.UserInfo(user, "secret"))
	}
	node := conn("node")
	listener, err := trackers.Listen(node, b.service)
	if err == nil {
		err = node.FlushTimeout(soon) // Listen waits for the server for a moment only
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close(t.Context()) })
	for user, may := range map[string]bool{"web": true, "accounts": false} {
		patience := map[bool]time.Duration{true: soon, false: 200 * time.Millisecond}[may]
		client := testenv.Must(trackerclient.New(conn(user), trackerclient.Config{Timeout: patience}))(t)
		if _, err := client.Open(t.Context(), trackerclient.BatchSettings{Owner: user}); (err == nil) != may {
			t.Errorf("%s: %v", user, err)
		}
	}
	if n := b.count(`SELECT count(*) FROM tracker_service`); n != 1 {
		t.Errorf("%d batches were opened", n)
	}
}
