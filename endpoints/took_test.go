package endpoints

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/backoff"
)

// A service says how long it worked: without the time that the chunk waited its turn, and in a flow over all stages.
func TestRepliesSayHowLongTheServiceWorked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const nap = 150 * time.Millisecond
	svc := b.service()
	type end struct {
		slice uuid.UUID
		at    time.Time
	}
	ended := make(chan end, 10)
	check(t, HandleList(svc, "list", func(ctx context.Context, chunk *Chunk[number, square]) error {
		_ = backoff.Sleep(ctx, nap)
		for _, item := range chunk.Items() {
			item.Reply(square{})
		}
		ended <- end{chunk.Meta().Slice, time.Now()}
		return nil
	}, Concurrency(1)))
	check(t, HandleEach(svc, "each", func(ctx context.Context, _ number) (square, error) {
		_ = backoff.Sleep(ctx, nap)
		return square{}, nil
	}, Concurrency(1)))
	toList := To[number, square]("list")
	check(t, HandleFlow(svc, "flow", numberStages{
		perItem(func(item *numberItem) { toList.Ask(item, number{}) }),
		perItem(func(item *numberItem) { item.Reply(square{}) }),
	}))
	b.Run(svc)
	b.ask("list", numbers(2))
	b.ask("list", numbers(2))
	replies := b.collect(2)
	first, second := await(t, "end of the first", ended), await(t, "end of the second", ended)
	one, other := replies[first.slice].took, replies[second.slice].took
	// They were worked on one after the other.
	if since := time.Since(first.at); one < nap || other < nap || other > since {
		t.Errorf("two lists took %s and %s, the second within %s; each was worked on for %s", one, other, since, nap)
	}
	if took := b.reply("each", numbers(2)).took; took < 2*nap {
		t.Errorf("two items after one another took %s", took)
	}
	if took := b.reply("flow", numbers(2)).took; took < nap {
		t.Errorf("a flow took %s", took)
	}
}
