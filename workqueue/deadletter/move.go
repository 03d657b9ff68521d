package deadletter

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
)

// letterMove is an operator's action on dead letters: which it moved out of which states, and into which.
type letterMove struct {
	actor string
	op    string
	to    LetterState
	sel   DeadSelection
	ids   []workqueue.LetterID // of all named ones, or of the first that waited
	from  map[string]any
	total int
}

// add notes a letter that is moved by its id.
func (m *letterMove) add(l *deadRow) {
	m.ids = append(m.ids, l.ID)
	m.count(l.State, 1)
}

// waiting notes letters that are moved because they wait.
func (m *letterMove) waiting(n int) { m.count(LetterWaiting, n) }

func (m *letterMove) count(state LetterState, n int) {
	if m.from == nil {
		m.from = map[string]any{}
	}
	before, _ := m.from[string(state)].(int) // 0 when it is the first
	m.from[string(state)] = before + n
	m.total += n
}

// audit notes the action in the transaction that carries it out: how many letters were in which state, and where they
// are now.
func (m *letterMove) audit(ctx context.Context, tx pgx.Tx) error {
	detail := map[string]any{
		"letters": m.total, "ids": m.ids[:min(len(m.ids), maxListed)], "force": m.sel.Force, "all": m.sel.All,
	}
	if m.sel.Endpoint != "" {
		detail["endpoint"] = m.sel.Endpoint
	}
	return ledger.AuditChange(ctx, tx, ledger.Action{
		Actor: m.actor, Name: "dead_letter_" + m.op, Subject: m.sel.Endpoint, Detail: detail, Before: m.from,
		After: map[string]any{string(m.to): m.total},
	})
}
