package fetch_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// directly answers requests over core NATS by hand. answer gets the ordinals that are asked for, and says with how many
// slots in all and in which bodies they are answered; the last one is the final message.
func (b *bundle) directly(t *testing.T, answer func(asked []int) (final int, bodies []string)) {
	t.Helper()
	_, err := b.NC.QueueSubscribe(wire.DirectSubject("statement"), "tranche", func(msg *nats.Msg) {
		var request struct {
			Items []struct {
				I int `json:"i"`
			} `json:"items"`
		}
		if err := json.Unmarshal(msg.Data, &request); err != nil {
			t.Errorf("the request cannot be read: %v", err)
			return
		}
		asked := make([]int, len(request.Items))
		for i := range asked {
			asked[i] = request.Items[i].I
		}
		slice := uuid.MustParse(msg.Header.Get(wire.HeaderSlice))
		run := uuid.MustParse(msg.Header.Get(wire.HeaderRun))
		f := nodetest.Forger{Run: workqueue.RunID(run)}
		final, bodies := answer(asked)
		for i, text := range bodies {
			n := -1
			if i == len(bodies)-1 {
				n = final
			}
			reply := f.Reply(workqueue.SliceID(slice), n, text)
			reply.Subject = msg.Header.Get(wire.HeaderReplyTo)
			if err := b.NC.PublishMsg(reply); err != nil {
				t.Error(err)
			}
		}
	})
	if err == nil {
		err = b.NC.FlushTimeout(nodetest.Stuck)
	}
	testenv.NoError(t, err)
}

// Of a request that was sent again a second reply comes. Its messages do not stand for those of the first that are
// still to come: nothing is taken for left out.
func TestDoubledRepliesOverCoreNATS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.directly(t, func(asked []int) (int, []string) {
		half := len(asked) / 2
		first, second := nodetest.Body(asked[:half]...), nodetest.Body(asked[half:]...)
		empty := `{"slots":[]}`
		final := []string{first, first, nodetest.Body(100_000), empty, first, second}
		return len(asked) + 1, append(final, empty)
	})
	req := asked()
	req.Steps[0].MaxAttempts = 1
	run := b.Start(t, req, 1000)
	if done, failed := b.Outcome(t, run, 1); done != 1000 || failed != 0 {
		t.Errorf("done %d, failed %d: %s", done, failed, b.Dump(t, run))
	}
	b.Check(t)
}

// Replies that come faster than they can be recorded are let go when they are too many, and asked for again later; no
// item is blamed.
func TestTooManyRepliesOverCoreNATS(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	cfg, nc := nodetest.Config(t), testenv.Conn(t, b.NS)
	cfg.ReplyBacklog, cfg.RecordBatch = 4<<20, 1
	b.Node = b.Join(t, b.Store, nc, cfg).Node
	held := testenv.Must(b.Pool.Begin(t.Context()))(t)
	defer held.Rollback(t.Context()) //nolint:errcheck // it is over
	testenv.Must(held.Exec(t.Context(), `LOCK TABLE work_result IN SHARE MODE`))(t)
	const items, size = 180, 90 << 10
	pad := strings.Repeat("x", size)
	b.directly(t, func(asked []int) (int, []string) {
		var bodies []string
		for _, i := range asked {
			bodies = append(bodies, strings.Replace(nodetest.Body(i), `"of":"`, `"of":"`+pad, 1))
		}
		return len(asked), bodies
	})
	req := asked()
	req.Steps[0].MaxAttempts, req.Steps[0].Chunk = 1, items
	req.Steps[0].Timeout = time.Minute // it is the room that is to run out, and not the time
	run := b.Start(t, req, items)
	// The recorders and what waits for them hold about 4 MiB, the backlog as much again; the node is sent 16.
	nodetest.Until(t, "as many replies are held as may be, and the others have come", func() bool {
		return b.Node.Stats().Replies > 40 && nc.Stats().InBytes > items*size
	})
	testenv.NoError(t, held.Rollback(t.Context()))
	if done, failed := b.Outcome(t, run, 1); done != items || failed != 0 {
		t.Errorf("done %d, failed %d: %s", done, failed, b.Dump(t, run))
	}
	if b.Number(t, `SELECT count(*) FROM work_slice WHERE run_id = $1 AND error_code = 'overloaded'`, run) == 0 {
		t.Errorf("nothing was dropped: %s", b.Dump(t, run))
	}
	b.Check(t)
}
