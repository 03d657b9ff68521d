package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// lettersAndEvents are the streams that no item waits for.
var lettersAndEvents = [...]string{"TRANCHE_DEAD", "TRANCHE_EVENT"} //nolint:gochecknoglobals // a constant

// readStreamFaults reads which streams take nothing of what items wait for.
func (f *facts) readStreamFaults(ctx context.Context, tx pgx.Tx) (err error) {
	f.faults, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[session.StreamFault], session.StreamFaults)
	if err != nil {
		return fmt.Errorf("read which streams take nothing: %w", err)
	}
	f.faults = slices.DeleteFunc(f.faults, func(s session.StreamFault) bool {
		return slices.Contains(lettersAndEvents[:], s.Stream)
	})
	return nil
}

// unwritable explains items that wait for messages which JetStream cannot store, if they do: neither services nor nodes
// can do anything about them meanwhile.
func (f *facts) unwritable(kind workqueue.Kind, g *MissingGroup) bool {
	if len(f.faults) == 0 || kind != workqueue.KindEndpoint {
		return false
	}
	first := f.faults[0]
	g.Reason, g.Owner, g.Who, g.When = ReasonUnwritable, OwnerOperator, "whoever runs the NATS server", nil
	g.Since = &first.Since
	g.Why = StoreText(f.faults)
	if first.Detail == "" {
		g.Owner, g.Who, g.When = OwnerNode, f.leaderText(), after(f.at, replacedWithin)
		g.Next = "it replaces them within seconds, and issues again what was under way, which does not count against it"
		return true
	}
	g.Next = "the node that leads replaces the streams within seconds of there being room, and issues again what was " +
		"under way, which does not count against it"
	g.Advice = []Advice{{Do: "make room on the disk of the NATS server; nothing has to be done here then"}}
	return true
}

// replacedWithin is how long the leader takes to replace a stream, about.
const replacedWithin = 10 * time.Second

// StoreText says of streams that take nothing what is wrong with them.
func StoreText(faults []session.StreamFault) string {
	names := make([]string, len(faults))
	for i := range faults {
		names[i] = faults[i].Stream
	}
	text := "JetStream's store cannot be written, as on a full disk: " + strings.Join(names, ", ")
	if len(names) == 1 {
		text += " takes no messages"
	} else {
		text += " take no messages"
	}
	if detail := faults[0].Detail; detail != "" {
		return text + ", and there is no room for new ones: " + detail
	}
	return text + " since it could not once; there is room now"
}
