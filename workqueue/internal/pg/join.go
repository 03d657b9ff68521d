package pg

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

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
