package pg

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Wrapped sends each statement or batch in one flush with its settings: a pooler may take the connection away
// afterwards. The flush is one transaction, so transaction-local settings apply to it.
type Wrapped struct {
	On interface {
		SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	}
	Settings string // as for [NewPipelined]
	// Begins: the transaction must set its isolation level, see [Begin]. A failure then costs the connection.
	Begins bool
}

// Until returns the milliseconds until ctx's deadline, or 0 for none, as a statement_timeout: PostgreSQL then ends what
// nothing waits for. A timeout is at most 24.8 days.
func Until(ctx context.Context) string {
	end, ok := ctx.Deadline()
	if !ok {
		return "0"
	}
	return strconv.FormatInt(min(max(time.Until(end).Milliseconds(), 1), math.MaxInt32), 10)
}

// SendBatch is a connection's.
func (w Wrapped) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	all, before := &pgx.Batch{}, 1
	if w.Begins {
		all.Queue(Begin)
		before++
	}
	all.Queue(w.Settings, Until(ctx))
	all.QueuedQueries = append(all.QueuedQueries, b.QueuedQueries...)
	if w.Begins {
		all.Queue("commit")
	}
	return behind(w.On.SendBatch(ctx, all), before)
}

// Exec is a connection's.
func (w Wrapped) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return execBehind(w.SendBatch(ctx, one(sql, args)))
}

// Query is a connection's. It ignores query modes: behind a pooler no plan is kept.
func (w Wrapped) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	args = slices.DeleteFunc(slices.Clone(args), func(arg any) bool { _, is := arg.(pgx.QueryExecMode); return is })
	return queryBehind(w.SendBatch(ctx, one(sql, args)))
}

// QueryRow is a connection's.
func (w Wrapped) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return FirstRow(w.Query(ctx, sql, args...))
}

// Join is [Leave] for statements that make rows from arrays by unnest. If a statement with the same text is queued,
// its rows join that one, before anything queued in between. So it must depend only on joined statements.
func Join(ctx context.Context, tx pgx.Tx, batch *pgx.Batch) error {
	p, ok := tx.(*pipelined)
	if !ok || p.closed {
		return Leave(ctx, tx, batch)
	}
	for _, q := range batch.QueuedQueries {
		at := slices.IndexFunc(p.waiting, func(w *pgx.QueuedQuery) bool { return w.SQL == q.SQL })
		if at < 0 {
			p.waiting = append(p.waiting, &pgx.QueuedQuery{SQL: q.SQL, Arguments: slices.Clone(q.Arguments)})
			continue
		}
		for i, array := range p.waiting[at].Arguments {
			those := reflect.ValueOf(array)
			p.waiting[at].Arguments[i] = reflect.AppendSlice(those.Slice3(0, those.Len(), those.Len()),
				reflect.ValueOf(q.Arguments[i])).Interface()
		}
	}
	return nil
}

// JoinOne is [Join] for one statement.
func JoinOne(ctx context.Context, tx pgx.Tx, sql string, arrays ...any) error {
	batch := &pgx.Batch{}
	batch.Queue(sql, arrays...)
	return Join(ctx, tx, batch)
}

// Row converts values to the parameters of a statement that takes arrays, with one element each.
func Row(values ...any) []any {
	arrays := make([]any, len(values))
	for i, value := range values {
		of := reflect.ValueOf(value)
		array := reflect.MakeSlice(reflect.SliceOf(of.Type()), 1, 1)
		array.Index(0).Set(of)
		arrays[i] = array.Interface()
	}
	return arrays
}

// ArrayText returns a list in PostgreSQL's text form of arrays.
func ArrayText[T any](list []T) string {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	texts := make([]string, len(list))
	for i, one := range list {
		texts[i] = `"` + quoted.Replace(fmt.Sprint(one)) + `"`
	}
	return "{" + strings.Join(texts, ",") + "}"
}
