package statements_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/examples/statements"
	"github.com/tranchehq/tranche/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// smallBank is pgbench's tables with one account for each thing that can be wrong.
const smallBank = `
CREATE TABLE pgbench_branches (bid int);
CREATE TABLE pgbench_accounts (aid int, bid int, abalance int);
CREATE TABLE pgbench_history (aid int, delta int);
INSERT INTO pgbench_branches VALUES (1);
INSERT INTO pgbench_accounts VALUES (1, 1, 70), (2, 1, NULL), (3, 9, 10), (4, NULL, 10), (5, 1, 20), (6, 1, -5);
INSERT INTO pgbench_history VALUES (1, 50), (1, -30), (5, 20), (5, NULL);`

func TestRun(t *testing.T) {
	t.Parallel()
	bank := testenv.Pool(t)
	if _, err := bank.Exec(t.Context(), smallBank); err != nil {
		t.Fatal(err)
	}
	nc := testenv.Conn(t, testenv.NATS(t))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- statements.Run(ctx, nc, bank, nil) }()

	keys := []string{"6", "1", "2", "3", "4", "5", "99", "seven"}
	got := ask(t, nc, keys)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the service ended with %v", err)
	}
	want := map[string]string{
		"1": `{"account":1,"branch":1,"opening":50,"closing":70,"movements":2,"sum":20}`,
		"2": "no_balance: the account has no balance",
		"3": "unknown_branch: branch 9 does not exist",
		"4": "unknown_branch: the account belongs to no branch",
		"5": "broken_movement: 1 of 2 movements without an amount",
		"6": `{"account":6,"branch":1,"opening":-5,"closing":-5,"movements":0,"sum":0}`,

		"99": "unknown_account: the bank has no such account", "seven": endpoints.CodeBadPayload,
	}
	for key, answer := range want {
		if got[key] != answer {
			t.Errorf("account %s: got %s, want %s", key, got[key], answer)
		}
	}
}

// ask sends a request as a node does and returns the answers by key.
func ask(t *testing.T, nc *nats.Conn, keys []string) map[string]string {
	t.Helper()
	js, err := jetstream.New(nc)
	check(t, err)
	_, err = endpoints.EnsureStreams(t.Context(), js, endpoints.StreamConfig{})
	check(t, err)
	check(t, endpoints.EnsureConsumer(t.Context(), js, statements.Endpoint, endpoints.ConsumerSettings{}))
	replies, err := endpoints.EnsureRecorder(t.Context(), js)
	check(t, err)
	meta := endpoints.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1, Generation: 1, Mode: endpoints.ModeBatch}
	request := endpoints.NewRequestBuilder(statements.Endpoint, meta, int(nc.MaxPayload()))
	for i, key := range keys {
		payload, err := json.Marshal(map[string]string{"aid": key})
		check(t, err)
		request.Add(i, key, payload)
	}
	_, err = js.PublishMsg(t.Context(), request.Msg())
	check(t, err)

	answers := map[string]string{}
	for len(answers) < len(keys) {
		msg, err := replies.Next(jetstream.FetchMaxWait(20 * time.Second))
		check(t, err)
		reply, err := endpoints.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), endpoints.Limits{})
		check(t, err)
		for _, slot := range reply.Slots {
			answers[keys[slot.Ordinal]] = text(slot)
		}
	}
	return answers
}

func text(slot endpoints.Slot) string {
	switch {
	case slot.Err == nil:
		return string(slot.Data)
	case slot.Err.Code == endpoints.CodeBadPayload:
		return slot.Err.Code // its words are another package's
	default:
		return fmt.Sprintf("%s: %s", slot.Err.Code, slot.Err.Message)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
