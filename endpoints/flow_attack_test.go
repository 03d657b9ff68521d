package endpoints

import (
	"fmt"
	"testing"
	"time"
)

// TestAReplyOfManyMessages has a callee send one message for each item: all of them are noted in one place.
func TestAReplyOfManyMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 {
		svc := b.service()
		check(t, HandleFlow(svc, "flow", twoStages(false), Concurrency(128)))
		b.run(svc)
	}
	const items = 1000
	meta := b.ask("flow", numbers(items))
	request := b.requestFor("double")
	began := time.Now()
	for i := range items {
		final := -1
		if i == items-1 {
			final = items
		}
		msg := part(request, final, fmt.Sprintf(`{"i":%d,"d":{"n":%d}}`, i, i))
		check(t, b.nc.PublishMsg(msg))
	}
	w := b.collect(1)[meta.Slice]
	if w == nil || w.answered != items || w.failure != nil {
		t.Fatalf("%+v", w)
	}
	t.Logf("it took %s", time.Since(began))
	if n := b.logged.FilterMessageSnippet("could not be taken").Len(); n > 0 {
		t.Errorf("%d messages were handed back", n)
	}
}
