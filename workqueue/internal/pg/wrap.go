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

// Wrapped does each statement, or batch, in one flush with its settings: behind a pooler, which takes a connection away
// after it, it brings them along. The flush is one transaction, so that settings that last as long as that hold for it.
type Wrapped struct {
	On interface {
		SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	}
	Settings string // as those of [NewPipelined]
	// Begins says that the transaction has to say how it reads: see [Begin]. A statement that fails costs its connection
	// then.
	Begins bool
}

// Until is how long a statement may still take by ctx, in milliseconds, and 0 indefinitely: what PostgreSQL is to end
// by itself once no one waits for it. It takes no more than 24.8 days for a time-out.
func Until(ctx context.Context) string {
	end, ok := ctx.Deadline()
	if !ok {
		return "0"
	}
	return strconv.FormatInt(min(max(time.Until(end).Milliseconds(), 1), math.MaxInt32), 10)
}

// SendBatch is that of a connection.
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

// Exec is that of a connection.
func (w Wrapped) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return execBehind(w.SendBatch(ctx, one(sql, args)))
}

// Query is that of a connection. How it is to be planned is left out: behind a pooler no plan is kept.
func (w Wrapped) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	args = slices.DeleteFunc(slices.Clone(args), func(arg any) bool { _, is := arg.(pgx.QueryExecMode); return is })
	return queryBehind(w.SendBatch(ctx, one(sql, args)))
}

// QueryRow is that of a connection.
func (w Wrapped) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return FirstRow(w.Query(ctx, sql, args...))
}

// Join is [Leave] for statements that make rows of what unnest takes apart of their parameters, all of them arrays: one
// whose text waits already becomes part of that one, and its rows come before what was left in between. So it must need
// nothing of the transaction but what was joined as well.
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

// Row is values as the parameters of a statement that makes rows of arrays: each an array of its own.
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

// ArrayText is a list as PostgreSQL writes an array, to be cast to one.
func ArrayText[T any](list []T) string {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	texts := make([]string, len(list))
	for i, one := range list {
		texts[i] = `"` + quoted.Replace(fmt.Sprint(one)) + `"`
	}
	return "{" + strings.Join(texts, ",") + "}"
}
