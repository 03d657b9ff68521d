package start

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Content is what a load contains beyond its plan and parameters. With another one, a key is a conflict.
type Content struct {
	Said  map[string]string // what was requested, under the users' names
	Items bool              // compare the items, too; not where each reading may find others
}

type keptContent struct {
	Said  map[string]string `json:"said,omitempty"`
	Items string            `json:"items,omitempty"` // digest of keys and payloads in order
}

type itemDigest struct {
	sum   hash.Hash
	items int64
}

func (d *itemDigest) add(item *LoadItem) {
	var sizes [16]byte
	binary.BigEndian.PutUint64(sizes[:8], uint64(len(item.Key)))
	binary.BigEndian.PutUint64(sizes[8:], uint64(len(item.Payload)))
	_, _ = d.sum.Write(sizes[:]) // a hash never fails
	_, _ = io.WriteString(d.sum, item.Key)
	_, _ = d.sum.Write(item.Payload)
	d.items++
}

// content is what the run stores after all items were read, or nil if nothing will be compared.
func (l *loader) content() *keptContent {
	if l.req.IdempotencyKey == "" || l.req.Content == nil {
		return nil
	}
	kept := &keptContent{Said: l.req.Content.Said}
	if l.digest != nil {
		kept.Items = hex.EncodeToString(l.digest.sum.Sum(nil))
	}
	return kept
}

const keepContent = `UPDATE batchrun SET content = $2 WHERE id = $1`

const contentOfRun = `SELECT spec, params, content, items + skipped FROM batchrun WHERE id = $1`

// compare compares a load with the run that its key started. It reads the items not read so far.
func (l *loader) compare(ctx context.Context, from pg.RowQuerier, known Loaded) (Loaded, error) {
	var spec json.RawMessage
	var stored []byte
	var kept *keptContent
	var items int64
	err := from.QueryRow(ctx, contentOfRun, known.Run).Scan(&spec, &stored, &kept, &items)
	if errors.Is(err, pgx.ErrNoRows) { // it was just deleted
		return Loaded{}, fmt.Errorf("load run: run %s, which idempotency key %q had started, was removed just now: %w; "+
			"start again", known.Run, l.req.IdempotencyKey, workqueue.ErrNotFound)
	}
	if err != nil {
		return Loaded{}, fmt.Errorf("look up idempotency key %q: %w", l.req.IdempotencyKey, err)
	}
	params, err := startedWith(ctx, l.store, from, known.Run, stored)
	if err != nil {
		return Loaded{}, fmt.Errorf("compare with the run of idempotency key %q: %w", l.req.IdempotencyKey, err)
	}
	other := append(differentPlans(spec, l.req.spec()), differentTexts("parameter ", params, l.req.params())...)
	if kept != nil && l.req.Content != nil {
		other = append(other, differentTexts("", kept.Said, l.req.Content.Said)...)
	}
	if len(other) == 0 && kept != nil && kept.Items != "" && l.digest != nil {
		if err := l.readOn(); err != nil {
			return Loaded{}, fmt.Errorf("load run: %w", err)
		}
		if l.content().Items != kept.Items {
			other = append(other, differentItems(items, l.digest.items))
		}
	}
	if len(other) > 0 {
		return Loaded{}, workqueue.Conflict("idempotency key %.80q has started run %s with other content: %s. Nothing was "+
			"started; use a different key for each run", l.req.IdempotencyKey, known.Run, strings.Join(other, "; "))
	}
	return known, nil
}

// startedWith returns the parameters of a run whose start is repeated.
func startedWith(ctx context.Context, db *database.DB, from pg.Querier, run workqueue.RunID, stored []byte,
) (map[string]string, error) {
	params, err := db.Params(ctx, from, run, stored)
	if errors.Is(err, database.ErrDamaged) {
		err = &workqueue.StateError{Run: run, State: "one whose parameters cannot be decrypted",
			Op: "repeat the start of", Fix: "use another key for another run"}
	}
	return params, err
}

func (l *loader) readOn() error {
	for b := (&itemBatch{}); ; b.reset(0) {
		if _, err := l.fill(b); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func differentItems(then, now int64) string {
	if then == now {
		return fmt.Sprintf("the items (as many, %s, with other keys, payloads or in another order)", control.Grouped(now))
	}
	return fmt.Sprintf("the items (%s then, %s now)", control.Grouped(then), control.Grouped(now))
}

func differentTexts(what string, then, now map[string]string) (other []string) {
	names := map[string]string{}
	maps.Copy(names, then)
	maps.Copy(names, now)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, had := then[name]
		is, has := now[name]
		switch {
		case had && has && was == is:
		case !had:
			other = append(other, fmt.Sprintf("%s%.40s (none then, %.40q now)", what, name, is))
		case !has:
			other = append(other, fmt.Sprintf("%s%.40s (%.40q then, none now)", what, name, was))
		default:
			other = append(other, fmt.Sprintf("%s%.40s (%.40q then, %.40q now)", what, name, was, is))
		}
	}
	return few(other)
}

const maxDifferences = 5

func few(all []string) []string {
	if more := len(all) - maxDifferences; more > 0 {
		all = append(all[:maxDifferences:maxDifferences], fmt.Sprintf("%d more", more))
	}
	return all
}

func differentPlans(then, now json.RawMessage) []string {
	was, is := settingsByPath(then), settingsByPath(now)
	var other []string
	names := maps.Clone(was)
	maps.Copy(names, is)
	for _, path := range slices.Sorted(maps.Keys(names)) {
		said := func(all map[string]string) string {
			if value, given := all[path]; given {
				return fmt.Sprintf("%.40s", value)
			}
			return "none"
		}
		if was[path] != is[path] {
			other = append(other, fmt.Sprintf("the plan's %.60s (%s then, %s now)", path, said(was), said(is)))
		}
	}
	return few(other)
}

func settingsByPath(text json.RawMessage) map[string]string {
	all := map[string]string{}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var tree any
	if dec.Decode(&tree) == nil {
		flatten("", tree, all)
	}
	delete(all, "done_by") // a command sends 06:00 as another time each day
	return all
}

func flatten(path string, tree any, all map[string]string) {
	under := func(name string) string { return strings.TrimPrefix(path+"."+name, ".") }
	switch v := tree.(type) {
	case map[string]any:
		for name, value := range v {
			flatten(under(name), value, all)
		}
	case []any:
		for i, value := range v {
			name := fmt.Sprint(i)
			if object, ok := value.(map[string]any); ok {
				if said, ok := object["name"].(string); ok {
					name = said
				}
			}
			flatten(under(name), value, all)
		}
	default:
		text, _ := json.Marshal(v) // of a scalar that was parsed
		all[path] = string(text)
	}
}

// companions are a node's small loads that wait while others are committed, and share the next transaction. Their
// statements become one of each kind (see [pg.Join]), which PostgreSQL prepares once instead of for each run. A lone
// load does not wait. If anything is wrong with any of them, each is done separately and gets its own error.
type companions struct {
	mu      sync.Mutex
	waiting []*companion
	busy    bool
}

type companion struct {
	load   *loader
	batch  *itemBatch
	origin workqueue.Origin // for the audit log: the transaction is that of another caller
	into   string           // its namespace, whose quota the transaction may exceed
	done   chan error       // gets the outcome, once
}

const (
	// maxCompanions bounds the loads of a transaction.
	maxCompanions = 32
	// quickCommit is the duration of a commit on an idle PostgreSQL. Beyond it, concurrent loads gather for three times
	// the excess of the last commit, longestGather at most, since sharing transactions reduces the total work.
	quickCommit   = 5 * time.Millisecond
	longestGather = 100 * time.Millisecond
)

// errApart means that the load must be done separately.
var errApart = errors.New("the load is separate")

// asksNothing reports whether a load needs no answers, so that its transaction waits only for COMMIT.
func (l *loader) asksNothing(ctx context.Context, b *itemBatch) bool {
	r := &l.req
	return !l.store.Keyed() && r.Order == nil && r.Sealing == nil && r.FromRun == (workqueue.RunID{}) &&
		r.OnDuplicate != DuplicateSkip && len(r.Steps) == 1 &&
		r.Steps[0].EffectiveKind() == workqueue.KindEndpoint && l.paced() && pg.TooFewForCopy(len(b.rows), len(b.arena)) &&
		len(b.rows) > 0 && l.refused == 0 && !ledger.Claimed(ctx)
}

// load makes a run, with waiting ones if there are any. If it returns errApart, nothing was done.
func (c *companions) load(ctx context.Context, l *loader, b *itemBatch) error {
	me := &companion{l, b, workqueue.OriginOf(ctx), workqueue.Into(ctx), make(chan error, 1)}
	c.mu.Lock()
	c.waiting = append(c.waiting, me)
	if !c.busy {
		c.busy = true
		go c.commit(context.WithoutCancel(ctx), l.store)
	}
	c.mu.Unlock()
	select {
	case err := <-me.done:
		return err
	case <-ctx.Done():
	}
	c.mu.Lock()
	at := slices.Index(c.waiting, me)
	if at >= 0 {
		c.waiting = slices.Delete(c.waiting, at, at+1)
	}
	c.mu.Unlock()
	if at >= 0 {
		return context.Cause(ctx)
	}
	return <-me.done // the transaction is in progress, and has a time limit
}

func (c *companions) commit(ctx context.Context, db *database.DB) {
	for {
		c.mu.Lock()
		var some, others []*companion
		for _, one := range c.waiting {
			if len(some) < maxCompanions && one.into == c.waiting[0].into {
				some = append(some, one)
			} else {
				others = append(others, one)
			}
		}
		c.waiting = others
		c.busy = len(some) > 0
		c.mu.Unlock()
		if len(some) == 0 {
			return
		}
		begun := time.Now()
		err := commitTogether(ctx, db, some)
		for _, one := range some {
			one.done <- err
		}
		if slow := time.Since(begun) - quickCommit; slow > 0 && len(some) > 1 {
			_ = backoff.Sleep(ctx, min(3*slow, longestGather))
		}
	}
}

func commitTogether(ctx context.Context, db *database.DB, some []*companion) error {
	var inside error
	err := db.InTxWithin(ctx, database.LoadTimeout, func(ctx context.Context, tx pgx.Tx) error {
		for _, one := range some {
			inside = one.load.makeWhole(workqueue.WithOrigin(ctx, one.origin), tx, one.batch)
			if inside != nil {
				return inside
			}
		}
		return nil
	})
	_, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return nil
	case answered || inside != nil: // nothing of them was committed
		return errApart
	}
	for _, one := range some { // if it reached the COMMIT, the outcome is unknown
		one.load.unsure = true
	}
	return err
}
