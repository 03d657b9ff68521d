package streams_test

import (
	"context"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/start"
)

// PROOF: who may do what, 17. Whatever becomes of items, also of those that break their service or cannot be read,
// neither the node nor the SDK logs what is in them, not even for those who look for faults.
func TestPayloadsAreNotLogged(t *testing.T) {
	t.Parallel()
	const canary = "CANARY-4711"
	core, seen := observer.New(zap.DebugLevel)
	b := &bundle{nodetest.ServersOnly(t)}
	node := testenv.Must(orchestrator.New(b.Store, testenv.Conn(t, b.NS),
		orchestrator.Config{Log: zap.New(core), Grace: time.Second}))(t)
	b.Node = node
	nodetest.Run(t, "node", node.Run)
	nodetest.WantReady(t, node)
	svc, err := endpoints.New(testenv.Conn(t, b.NS), endpoints.Config{Name: "test", Version: "1.0.0", Log: zap.New(core)})
	testenv.NoError(t, err)
	err = endpoints.HandleList(svc, "statement", func(_ context.Context, c *nodetest.Chunk) error {
		for i, item := range c.Items() {
			switch {
			case strings.HasSuffix(item.In.ID, "panic"):
				panic("a mistake")
			case i%2 == 0:
				item.Fail("no", "it is refused")
			default:
				item.Reply(nodetest.Statement{Of: item.In.ID})
			}
		}
		return nil
	})
	testenv.NoError(t, err)
	nodetest.Run(t, "service", svc.Run)
	payloads := []string{`{"id":"` + canary + `"}`, `{"id":"` + canary + `2"}`, `{"id":["` + canary + `"]}`,
		`{"id":"` + canary + `panic"}`}
	req, i := nodetest.Request("statement"), 0
	req.Steps[0].MaxAttempts = 2
	loaded := testenv.Must(node.Runs().Start(t.Context(), req, func(item *start.LoadItem) error {
		if i == len(payloads) {
			return io.EOF
		}
		item.Key, item.Payload = strconv.Itoa(i), []byte(payloads[i])
		i++
		return nil
	}))(t)
	if done, failed := b.Outcome(t, loaded.Run, 1); done+failed != int64(len(payloads)) || failed == 0 {
		t.Errorf("%d done, %d failed", done, failed)
	}
	if seen.Len() == 0 {
		t.Error("nothing was logged: the test shows nothing")
	}
	for _, entry := range seen.All() {
		fields, err := json.Marshal(entry.ContextMap())
		if text := entry.Message + string(fields); err != nil || strings.Contains(text, canary) {
			t.Errorf("a payload is in the log: %s, %v", text, err)
		}
	}
}
