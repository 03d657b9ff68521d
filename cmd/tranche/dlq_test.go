package main

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// buried puts dead letters into the database, with what a terminal must not be told in them.
func (b *bench) buried(endpoint string, n int, letter deadletter.DeadLetter) []workqueue.LetterID {
	b.Helper()
	store := database.New(testenv.Connect(b.T, b.database))
	letter.Endpoint, letter.Cause, letter.Message = endpoint, "handler_panic", "it \x1b[31mdied"
	for range n {
		letter.MsgID = uuid.NewString()
		if isNew, err := deadletter.New(store).Bury(b.Context(), letter); err != nil || !isNew {
			b.Fatal(isNew, err)
		}
	}
	page, err := deadletter.New(store).DeadLetters(b.Context(), deadletter.DeadFilter{Limit: n})
	if err != nil {
		b.Fatal(err)
	}
	var ids []workqueue.LetterID
	for i := range page.Letters {
		ids = append(ids, page.Letters[i].ID)
	}
	return ids
}

func TestDeadLettersByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(b.tranche("dlq", "list"), 0, "no dead letters")
	b.want(b.tranche("dlq", "requeue", "--all"), 0, "no dead letter waits")
	headers := map[string][]string{"Evil": {"\x1b[31m"}, wire.HeaderMode: {"single"}}
	mail := b.buried("mail", 3, deadletter.DeadLetter{
		Body: []byte(`{"items":[{"i":0,"k":"a\u001b[31m"}]}`), Headers: headers, Stack: "statement:1", Deliveries: 5,
	})
	loop := b.buried("loop", 1, deadletter.DeadLetter{Body: []byte("\x1b[31mtext"), Requeued: deadletter.MaxRequeues})[0]
	b.want(b.tranche("dlq", "list"), 0, loop.String()[:18], mail[2].String()[:18], "mail", "handler_panic", "waiting",
		`it \x1b[31mdied`)
	b.want(b.tranche("dlq", "list", "--endpoint", "mail", "--limit", "2"), 0, "go on with --after "+mail[1].String())
	b.want(b.tranche("dlq", "list", "--state", "dropped"), 0, "no dead letters")
	b.want(b.tranche("dlq", "show", mail[0].String()), 0, "statement:1", "deliveries", `Evil`, `\x1b[31m`, `"i": 0`,
		"tranche dlq requeue "+mail[0].String()[:18])
	b.want(b.tranche("dlq", "show", loop.String()), 0, `\x1b[31mtext`)

	b.want(b.tranche("dlq", "requeue", mail[0].String()[:18]), 0, "1 dead letter requeued")
	b.want(b.tranche("dlq", "requeue", mail[0].String()), 1, "0 dead letters requeued, 1 refused", "already")
	b.want(b.tranche("dlq", "drop", mail[0].String()), 1, "it is requeued")
	b.want(b.tranche("dlq", "requeue", "--endpoint", "mail"), 0, "2 dead letters requeued")
	b.want(b.tranche("dlq", "requeue", "--all"), 1, "1 refused", "mend the service")
	b.want(b.tranche("dlq", "requeue", "--all", "--force"), 0, "1 dead letter requeued")
	b.buried("mail", 1, deadletter.DeadLetter{})
	b.want(b.tranche("dlq", "drop", "--all"), 0, "1 dead letter dropped")
	b.want(b.tranche("dlq", "list", "--state", "requeued"), 0, "mail", "loop")

	for _, op := range []string{"requeue", "drop"} {
		b.want(b.tranche("dlq", op), 2, "--all")
		b.want(b.tranche("dlq", op, "--all", "--endpoint", "mail"), 2, "either ids")
		b.want(b.tranche("dlq", op, "ffff"), 1, "no dead letter has", "tranche dlq list")
	}
	b.want(b.tranche("dlq", "show", "nope"), 1, "tranche dlq list")
	b.want(b.tranche("dlq", "list", "--limit", "0"), 2, "--limit")
	b.want(b.tranche("dlq", "list", "--state", "lost"), 2, "--state")
	b.want(b.tranche("dlq", "list", "--after", "x"), 1, "after is not")
}

func TestTheQuarantineByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(b.tranche("quarantine", "list"), 0, "nothing is in quarantine")
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--name", "it"), 0, "3 items")
	store := database.New(testenv.Connect(t, b.database))
	run, err := inspect.New(store).Resolve(t.Context(), "it")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := deadletter.New(store).Quarantine(t.Context(), deadletter.Quarantined{
			Reason: "json", Detail: "byte \x1b[31m3", Subject: "tranche.reply.echo", Run: uuid.UUID(run), Body: []byte("{\x1b"),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	b.want(b.tranche("quarantine", "list", "--run", "it", "--limit", "1"), 0, "json", `byte \x1b[31m3`, "--after 2")
	b.want(b.tranche("quarantine", "show", "2"), 0, "tranche.reply.echo", run.String(), `{\x1b`)
	b.want(b.tranche("run", "show", "it"), 0, "2 messages about it", "tranche quarantine list")
	b.want(b.tranche("quarantine", "show", "9"), 1, "tranche quarantine list")
	b.want(b.tranche("quarantine", "list", "--run", "nope"), 1, "tranche run list")
}

// Operators change how much an instance does at once while it runs.
func TestEndpointsByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.echo(nil)
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--wait"), 3, "1 failed")
	b.wantSoon([]string{"endpoints"}, "ENDPOINT", "BACKLOG", "CALLS", "RATE", "P99", "1: echo 1.0.0")
	b.wantSoon([]string{"endpoints", "list"}, "1: echo 1.0.0")
	b.wantSoon([]string{"endpoints", "show", "echo"}, "left to the services", "3 items, 1 of them with an error", "1.0.0",
		"listening")
	b.want(b.tranche("endpoints", "set", "echo", "--concurrency", "3"), 0, "3 chunks at once")
	b.want(b.tranche("endpoints", "show", "echo"), 0, "3 for each instance")
	eventually(t, "the instance has taken it over", func() bool {
		var e client.Endpoint
		err := json.Unmarshal([]byte(b.tranche("endpoints", "show", "echo", "--json").out), &e)
		return err == nil && len(e.Listeners) == 1 && e.Listeners[0].Concurrency == 3
	})
	b.want(b.tranche("endpoints", "set", "echo", "--concurrency", "default"), 0, "left to its services")
	for _, n := range []string{"0", "-1", "1025", "many", ""} {
		b.want(b.tranche("endpoints", "set", "echo", "--concurrency="+n), 2, "--concurrency", "or default")
	}
	b.want(b.tranche("endpoints", "set", "a b", "--concurrency", "1"), 1, "endpoint name")
	b.want(b.tranche("endpoints", "show", "nope"), 1, "nobody listens", "tranche endpoints")
}

// A letter that was requeued comes to the service, which answers the one who asked.
func TestARequeuedLetterIsServed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nc := testenv.Dial(t, b.nats, nats.Name("single"))
	svc, err := endpoints.New(nc, endpoints.Config{Name: "mail", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan int, 10)
	err = endpoints.HandleEach(svc, "mail", func(_ context.Context, in int) (int, error) {
		served <- in
		return in, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := testenv.Keep(t, t.Errorf, "the service", svc.Run)
	defer stop()
	b.buried("mail", 1, deadletter.DeadLetter{Mode: "single", Body: []byte(`{"items":[{"i":0,"k":"a","d":7}]}`),
		Headers: map[string][]string{
			wire.HeaderVersion: {wire.ProtocolVersion}, wire.HeaderMode: {"single"},
			wire.HeaderSlice: {uuid.NewString()}, wire.HeaderRun: {uuid.NewString()},
			wire.HeaderStep: {"0"}, wire.HeaderAttempt: {"1"}, wire.HeaderGeneration: {"1"},
		}})
	b.want(b.tranche("dlq", "requeue", "--all"), 0, "1 dead letter requeued")
	got := -1
	eventually(t, "it is served", func() bool {
		select {
		case got = <-served:
			return true
		default:
			return false
		}
	})
	if got != 7 {
		t.Errorf("the service got %s", strconv.Itoa(got))
	}
}
