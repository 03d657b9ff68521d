// Package erasure erases what is stored about one item's key, such as a person's, on request.
//
// One marker per call replaces the key everywhere, and the item's payloads, results, error messages, letters,
// quarantined messages and collector operations are erased. Counts, states and codes stay consistent.
//
// It works in transactions with an audit entry each: one for each run, and several for the rest. After an
// interruption, repeat it. If something is in progress, it is refused before any change. It searches again until it
// finds nothing: data that arrived meanwhile is erased, too, or reported. A run that takes items of another is
// refused if items of that one were erased since it started reading (batchrun.erased).
//
// A test knows each column that can contain text and how it is searched ([Searched]). Messages in streams, backups,
// PostgreSQL's log, exports and services' data cannot be reached; [Unreached] lists this for users.
package erasure

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store erases. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db} }

// Request names the key to erase.
type Request struct {
	Key    string
	Run    workqueue.RunID // only from this run; zero: from everything
	DryRun bool            // change nothing, and return what would be erased
	Reason string          // for the audit log; must not contain the key
	Actor  string
}

// Erased is the numbers of erased rows.
type Erased struct {
	Items       int64 `json:"items" doc:"of runs: their keys and payloads"`
	Payloads    int64 `json:"earlier_payloads" doc:"that items had until they were corrected"`
	Results     int64 `json:"results" doc:"results, and messages of errors that were final"`
	Errors      int64 `json:"errors" doc:"messages of errors that were retried, and of chunks"`
	DeadLetters int64 `json:"dead_letters" doc:"their bodies; those that waited are dropped"`
	Quarantine  int64 `json:"quarantine" doc:"messages in quarantine"`
	Operations  int64 `json:"operations" doc:"parked operations of collectors"`
	Texts       int64 `json:"texts" doc:"events, alerts, answers and the like, that had the key"`
}

func (e *Erased) add(o *Erased) {
	e.Items, e.Payloads = e.Items+o.Items, e.Payloads+o.Payloads
	e.Results, e.Errors = e.Results+o.Results, e.Errors+o.Errors
	e.DeadLetters, e.Quarantine = e.DeadLetters+o.DeadLetters, e.Quarantine+o.Quarantine
	e.Operations, e.Texts = e.Operations+o.Operations, e.Texts+o.Texts
}

// Outcome is what an erasure did, or would do.
type Outcome struct {
	Marker string            // replaces the key
	Runs   []workqueue.RunID // that had the key
	Erased Erased
	Kept   []string // columns in whose definitions or names the key stays, and why
}

// UnderWayError is returned while the key is still in use.
type UnderWayError struct {
	Runs       []workqueue.RunID // in which the item has no outcome so far
	Params     []workqueue.RunID // in progress, with the key in their parameters
	Operations []string          // not flushed so far: the collector and the ID
	Late       bool              // it arrived after the rest was erased; otherwise nothing was erased
}

func (e *UnderWayError) Error() string {
	var why []string
	for _, run := range e.Runs[:min(len(e.Runs), 3)] {
		why = append(why, fmt.Sprintf("run %s is in progress, and the item has no outcome there yet; wait for it, or end "+
			"the run: tranche run cancel %s", run, run))
	}
	for _, run := range e.Params[:min(len(e.Params), 3)] {
		why = append(why, fmt.Sprintf("run %s is in progress, and a parameter of it has the key; wait for it, or end the "+
			"run: tranche run cancel %s", run, run))
	}
	for _, op := range e.Operations[:min(len(e.Operations), 3)] {
		name, id, _ := strings.Cut(op, " ")
		why = append(why, fmt.Sprintf("collector %s has an operation of it to flush; wait for it, or drop it: tranche "+
			"collector drop %s %s --waiting", name, name, id))
	}
	if more := len(e.Runs) + len(e.Params) + len(e.Operations) - len(why); more > 0 {
		why = append(why, fmt.Sprintf("and %d more", more))
	}
	what := "nothing was erased; the key is still in use: "
	if e.Late {
		what = "what there was is erased, but the key came in again meanwhile; erase it again later: "
	}
	return what + strings.Join(why, "; ")
}

// Unreached returns what no erasure reaches, for users.
func Unreached() []string {
	return []string{
		"messages in JetStream's streams, until they were handled or are past the limits of their stream",
		"what services, their own stores and receivers of webhooks keep",
		"exports, reports and results that were downloaded, and the files that items came from",
		"runs and audit rows in the archive (serve --archive): docs/retention.md says how to find the key there",
		"backups, standbys that lag and the write-ahead log of the database; former rows, until vacuum removes them",
		"logs, traces and metrics of nodes, proxies and the database, and what browsers have loaded",
		"payloads and results of other items that name the key",
		"of runs with order_by the number of the item's lane, a hash of its value",
	}
}

const (
	hashRounds = 600_000 // some tenths of a second, deliberately: keys can be guessed
	saltBytes  = 16
)

// mark computes the hash that proves a known key's erasure, and from its start the marker.
func mark(key string) (salt, hash, marker string, err error) {
	random := make([]byte, saltBytes)
	if _, err := rand.Read(random); err != nil {
		return "", "", "", fmt.Errorf("make a salt: %w", err)
	}
	sum, err := pbkdf2.Key(sha256.New, key, random, hashRounds, sha256.Size)
	if err != nil {
		return "", "", "", fmt.Errorf("hash the key: %w", err)
	}
	hash = hex.EncodeToString(sum)
	return hex.EncodeToString(random), hash, "erased-" + hash[:16], nil
}

type erasure struct {
	Request
	db                 *database.DB
	salt, hash, marker string
	parked             []int64 // operations of collectors, by number
	sealed             erasedParams
	stale              bool // parameters were changed since they were read
	unreadable         int  // encrypted runs whose parameters were not searched
	unsearched         int  // encrypted letters and quarantined messages that were not searched
}

type erasedParams struct {
	runs   []workqueue.RunID
	was    []json.RawMessage
	params []json.RawMessage
}

type foundParams struct {
	N      int
	Params []byte
}

func (e *erasure) only() *workqueue.RunID {
	if e.Run == (workqueue.RunID{}) {
		return nil
	}
	return &e.Run
}

const (
	// One probe of work_queue_key for each run.
	runsWithKey = `
SELECT r.id FROM batchrun r
WHERE ($2::uuid IS NULL OR r.id = $2) AND EXISTS (SELECT FROM work_queue q WHERE q.run_id = r.id AND q.item_key = $1)
ORDER BY r.id`

	paramsUnderWay = `
SELECT id FROM batchrun WHERE state IN ('loading', 'running') AND data_key IS NULL
    AND params <> erased_json(params, $1, $2, true) AND ($3::uuid IS NULL OR id = $3) ORDER BY id`

	pageOfSealed = `
SELECT id, state IN ('loading', 'running'), params FROM batchrun
WHERE data_key IS NOT NULL AND id > $1 AND ($2::uuid IS NULL OR id = $2) ORDER BY id LIMIT 500`

	findInParams = `
SELECT u.n, o.params FROM unnest($3::jsonb[]) WITH ORDINALITY AS u (params, n)
CROSS JOIN LATERAL (SELECT erased_json(u.params, $1, $2, true) AS params) o WHERE o.params <> u.params`
)

// maxRounds bounds the searches. Each one finds what arrived during the one before.
const maxRounds = 5

// Erase erases what is stored about a key. A dry run does each transaction and rolls back.
func (s Store) Erase(ctx context.Context, req Request) (out Outcome, err error) {
	if !pg.ValidText(req.Key) || req.Key == "" {
		return out, workqueue.BadSetting("key: it is empty, or no text that can be stored")
	}
	e := &erasure{Request: req, db: s.db}
	if e.salt, e.hash, e.marker, err = mark(req.Key); err != nil {
		return out, err
	}
	out.Marker = e.marker
	for n := 0; ; n++ {
		runs, err := e.find(ctx)
		if busy, ok := errors.AsType[*UnderWayError](err); ok {
			busy.Late = n > 0
		}
		if err != nil {
			return out, fmt.Errorf("erase: %w", err)
		}
		out.Runs = append(out.Runs, runs...)
		done, err := e.round(ctx, runs)
		out.Erased.add(&done)
		if err != nil {
			return out, err
		}
		if done == (Erased{}) && !e.stale || e.DryRun {
			break
		}
		if n == maxRounds {
			return out, fmt.Errorf("erase: the key came in again %d times while it was erased; erase it again later", n)
		}
	}
	if out.Erased == (Erased{}) { // the log shows the request anyway
		err := e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
			return e.audit(ctx, tx, e.Run, &out.Erased)
		})
		if err != nil {
			return out, fmt.Errorf("erase: %w", err)
		}
	}
	if out.Kept, err = e.kept(ctx); err != nil {
		return out, fmt.Errorf("erase: check what stays: %w", err)
	}
	return out, nil
}

func (e *erasure) round(ctx context.Context, runs []workqueue.RunID) (all Erased, err error) {
	for _, run := range runs {
		done, err := e.run(ctx, run)
		if err != nil {
			return all, fmt.Errorf("erase from run %s: %w", run, err)
		}
		all.add(&done)
	}
	done, err := e.beside(ctx)
	all.add(&done)
	return all, pg.Wrap(err, "erase")
}

func (e *erasure) find(ctx context.Context) (runs []workqueue.RunID, err error) {
	only := e.only()
	if runs, err = pg.Collect(ctx, e.db.Pool, pgx.RowTo[workqueue.RunID], runsWithKey, e.Key, only); err != nil {
		return nil, err
	}
	var busy UnderWayError
	for _, run := range runs {
		live, err := underWay(ctx, e.db.Pool, run, e.Key)
		if err != nil {
			return nil, err
		}
		if live {
			busy.Runs = append(busy.Runs, run)
		}
	}
	busy.Params, err = pg.Collect(ctx, e.db.Pool, pgx.RowTo[workqueue.RunID], paramsUnderWay, e.Key, e.marker, only)
	if err == nil {
		err = e.findSealed(ctx, &busy)
	}
	if err == nil && only == nil {
		busy.Operations, err = e.findOperations(ctx)
	}
	switch {
	case err != nil:
		return nil, err
	case len(busy.Runs)+len(busy.Params)+len(busy.Operations) > 0:
		return nil, &busy
	}
	return runs, nil
}

// audit writes the audit entry, with a hash of the key, never the key.
func (e *erasure) audit(ctx context.Context, tx pgx.Tx, run workqueue.RunID, done *Erased) error {
	detail := map[string]any{"marker": e.marker, "salt": e.salt, "hash": e.hash, "erased": done,
		"how": fmt.Sprintf("PBKDF2-HMAC-SHA-256, %d rounds", hashRounds)}
	ledger.AddReason(detail, e.Reason)
	return ledger.AuditChange(ctx, tx, ledger.Action{Actor: e.Actor, Name: "erase", Run: run, Detail: detail})
}
