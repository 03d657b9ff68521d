package doctor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	auditHead = `
SELECT h.seal, h.hash, coalesce((SELECT e.detail ->> 'gone' FROM audit_log e WHERE e.action = 'audit_expire'
    ORDER BY e.id DESC LIMIT 1), ''), tranche_now(), (SELECT count(*) FROM audit_log WHERE seal IS NULL),
    (SELECT min(at) FROM audit_log WHERE seal IS NULL)
FROM audit_head h`

	auditGone = `SELECT first, last, hash FROM audit_gone ORDER BY last`

	// Of a row that was erased from repeatedly, the newest digest counts.
	auditErased = `
SELECT n.key::bigint, n.value FROM audit_log e CROSS JOIN LATERAL jsonb_each_text(e.detail -> 'now') n
WHERE e.action = 'audit_erase' ORDER BY e.id`

	// The texts are PostgreSQL's: their form is part of what was hashed.
	auditChain = `
SELECT seal, id, at, (extract(epoch FROM at) * 1000000)::bigint::text, actor, action, run_id::text, origin::text,
    subject, detail::text, before::text, after::text, hash, uuid_send(salt), erased
FROM audit_log WHERE seal IS NOT NULL ORDER BY seal`
)

const (
	// sealLate is how long a row may be without a seal while a node leads.
	sealLate = time.Minute
	// longestAct is more than the time from a row's beginning to its commit.
	longestAct = time.Hour
)

// AuditReport is what the chain of the audit log shows. It lists at most a thousand findings; Found counts all.
type AuditReport struct {
	Rows     int64          `json:"rows" doc:"that are in the chain"`
	Head     string         `json:"head" doc:"its end, to be kept elsewhere and given to a later verify: number and hash"`
	First    *time.Time     `json:"first,omitempty" doc:"the time of the oldest row"`
	Last     *time.Time     `json:"last,omitempty" doc:"the time of the newest row"`
	Deleted  int64          `json:"deleted" doc:"rows that retention deleted"`
	Erased   int64          `json:"erased" doc:"rows in which the key of an item was erased"`
	Unsealed int64          `json:"unsealed" doc:"rows that are not in the chain yet"`
	Found    int            `json:"found"`
	Findings []AuditFinding `json:"findings"`
}

// AuditFinding is a place where the chain does not hold.
type AuditFinding struct {
	ID   int64  `json:"id,omitempty" doc:"the row; absent: it does not exist"`
	Seal int64  `json:"seal,omitempty" doc:"its number in the chain"`
	What string `json:"what"`
}

// String describes the finding in one line.
func (f AuditFinding) String() string {
	if f.ID == 0 {
		return f.What
	}
	return fmt.Sprintf("row %d (seal %d): %s", f.ID, f.Seal, f.What)
}

// ParseHead parses the head of an earlier report, like 1200:9f86….
func ParseHead(text string) (seal int64, hash []byte, err error) {
	number, digits, _ := strings.Cut(text, ":")
	seal, err = strconv.ParseInt(number, 10, 64)
	if hash, _ = hex.DecodeString(digits); err != nil || seal < 1 || len(hash) != sha256.Size {
		return 0, nil, workqueue.BadSetting("head: %q is not a head; give the number and the hash as tranche audit verify "+
			"printed them, like 1200:9f86d0…", text)
	}
	return seal, hash, nil
}

type auditRange struct {
	first, last int64
	hash        []byte
}

type auditWalk struct {
	report   AuditReport
	gone     []auditRange     // that the walk has not reached
	erased   map[int64]string // digests since an erasure, by row
	seal, id int64            // of the row before
	hash     []byte           // also; nil: unknown
	newest   time.Time        // of the rows before
	newestID int64
	kept     auditRange // last and hash: a head kept elsewhere
}

// VerifyAudit checks the chain of the audit log as of one moment, and against a head of an earlier report, if given.
// It computes each hash itself and trusts no function of the database. It reads the log once.
func (s Store) VerifyAudit(ctx context.Context, head string) (AuditReport, error) {
	w := &auditWalk{report: AuditReport{Findings: []AuditFinding{}}, erased: map[int64]string{}, hash: []byte{}}
	var err error
	if head != "" {
		if w.kept.last, w.kept.hash, err = ParseHead(head); err != nil {
			return w.report, err
		}
	}
	if err = s.db.Snapshot(ctx, func(tx pgx.Tx) error { return w.walk(ctx, tx) }); err != nil {
		return w.report, fmt.Errorf("verify the audit log: %w", err)
	}
	return w.report, nil
}

func (w *auditWalk) walk(ctx context.Context, tx pgx.Tx) error {
	var end auditRange
	var gone string
	var now time.Time
	var unsealed *time.Time
	err := tx.QueryRow(ctx, auditHead).Scan(&end.last, &end.hash, &gone, &now, &w.report.Unsealed, &unsealed)
	if errors.Is(err, pgx.ErrNoRows) {
		w.found(0, 0, "audit_head has no row: it was deleted")
	} else if err != nil {
		return err
	}
	if unsealed != nil && now.Sub(*unsealed) > sealLate {
		w.found(0, 0, "%d rows, the oldest of %s, are not in the chain, since no node leads; start tranche serve",
			w.report.Unsealed, unsealed.Format(time.RFC3339))
	}
	if err := w.readGone(ctx, tx, gone); err != nil {
		return err
	}
	var id int64
	var digest string
	if err := pg.Each(pg.Rows(ctx, tx, auditErased), []any{&id, &digest}, func() { w.erased[id] = digest }); err != nil {
		return err
	}
	var r auditRow
	err = pg.Each(pg.Rows(ctx, tx, auditChain), []any{&r.seal, &r.id, &r.at, &r.micros, &r.actor, &r.action, &r.run,
		&r.origin, &r.subject, &r.detail, &r.before, &r.after, &r.hash, &r.salt, &r.erased}, func() { w.row(&r) })
	if err != nil {
		return err
	}
	w.end(end)
	return nil
}

func (w *auditWalk) readGone(ctx context.Context, tx pgx.Tx, want string) error {
	var g auditRange
	var lines []*string
	err := pg.Each(pg.Rows(ctx, tx, auditGone), []any{&g.first, &g.last, &g.hash}, func() {
		g.hash = bytes.Clone(g.hash)
		line := fmt.Sprintf("%d %d %x", g.first, g.last, g.hash)
		w.gone, lines = append(w.gone, g), append(lines, &line)
		w.report.Deleted += g.last - g.first + 1
	})
	if is := hex.EncodeToString(auditDigest(nil, lines...)); err == nil && is != want && (want != "" || len(lines) > 0) {
		w.found(0, 0, "what audit_gone says that retention deleted is not what the newest audit_expire says: it was changed")
	}
	return err
}

type auditRow struct {
	seal, id              int64
	at                    time.Time
	micros, actor, action string
	run, origin           *string
	subject, detail       string
	before, after         *string
	hash, salt, erased    []byte
}

func (w *auditWalk) row(r *auditRow) {
	w.reach(r.seal)
	said := auditDigest(r.salt, &r.subject, &r.detail, r.before, r.after)
	if r.erased != nil {
		w.report.Erased++
		if w.erased[r.id] != hex.EncodeToString(said) {
			w.found(r.id, r.seal, "it was changed, and by no erasure in the log")
		}
		said = r.erased
	}
	seal, id, digits := strconv.FormatInt(r.seal, 10), strconv.FormatInt(r.id, 10), hex.EncodeToString(said)
	is := auditDigest(w.hash, &seal, &id, &r.micros, &r.actor, &r.action, r.run, r.origin, &digits)
	switch {
	case w.hash == nil || bytes.Equal(is, r.hash):
	case w.id == 0:
		w.found(r.id, r.seal, "it was changed")
	default:
		w.found(r.id, r.seal, "it was changed, or row %d before it was", w.id)
	}
	if r.at.Before(w.newest.Add(-longestAct)) {
		w.found(r.id, r.seal, "it says %s, which is before row %d of %s: it was inserted later, its transaction was open "+
			"for more than an hour, or the clock was set back",
			r.at.Format(time.RFC3339), w.newestID, w.newest.Format(time.RFC3339))
	}
	if at := r.at; w.report.Rows == 0 {
		w.report.First = &at
	}
	if r.at.After(w.newest) {
		w.newest, w.newestID = r.at, r.id
	}
	w.report.Rows++
	w.seal, w.id, w.hash = r.seal, r.id, bytes.Clone(r.hash)
	w.compare()
}

// reach takes the walk to a seal, over what retention deleted.
func (w *auditWalk) reach(seal int64) {
	for w.seal+1 < seal {
		for len(w.gone) > 0 && w.gone[0].last <= w.seal {
			w.gone = w.gone[1:]
		}
		if len(w.gone) == 0 || w.gone[0].first >= seal {
			w.missing(seal - 1)
			return
		}
		next := w.gone[0]
		if next.first > w.seal+1 {
			w.missing(next.first - 1)
		}
		if w.kept.last >= next.first && w.kept.last < next.last { // nothing is left to compare it with
			w.kept.last = 0
		}
		w.seal, w.id, w.hash = min(next.last, seal-1), 0, next.hash
		w.compare()
	}
}

func (w *auditWalk) missing(last int64) {
	if first := w.seal + 1; first == last {
		w.found(0, first, "the row of seal %d, after row %d, was deleted, and not by retention", first, w.id)
	} else {
		w.found(0, first, "the rows of seals %d to %d, after row %d, were deleted, and not by retention", first, last, w.id)
	}
	w.seal, w.id, w.hash = last, 0, nil
}

func (w *auditWalk) compare() {
	if w.seal == w.kept.last && !bytes.Equal(w.hash, w.kept.hash) {
		w.found(w.id, w.seal, "its hash is %x, and that of the head that was kept is %x: the log was rewritten", w.hash,
			w.kept.hash)
	}
}

func (w *auditWalk) end(end auditRange) {
	w.reach(max(end.last, w.seal) + 1)
	if w.hash != nil && (w.seal != end.last || !bytes.Equal(w.hash, end.hash)) {
		w.found(0, 0, "audit_head says that the log ends at seal %d, and it ends at %d: one of them was changed", end.last,
			w.seal)
	}
	if w.seal < w.kept.last {
		w.found(0, 0, "the log ends at seal %d, before %d that was kept: its end was deleted, or the database lost commits",
			w.seal, w.kept.last)
	}
	w.report.Head = fmt.Sprintf("%d:%x", w.seal, w.hash)
	if w.report.Rows > 0 {
		w.report.Last = &w.newest
	}
}

func (w *auditWalk) found(id, seal int64, what string, args ...any) {
	w.report.Found++
	if len(w.report.Findings) < maxViolations {
		w.report.Findings = append(w.report.Findings, AuditFinding{ID: id, Seal: seal, What: fmt.Sprintf(what, args...)})
	}
}

// auditDigest is audit_digest of the database.
func auditDigest(head []byte, parts ...*string) []byte {
	sum := sha256.New()
	sum.Write(head)
	for _, p := range parts {
		if p == nil {
			sum.Write([]byte("-"))
		} else {
			_, _ = fmt.Fprintf(sum, "%d:%s", len(*p), *p)
		}
	}
	return sum.Sum(nil)
}
