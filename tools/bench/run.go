package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// A run is given up after runBase and runPerItem for each item, which is a twentieth of the rate to expect.
const (
	runBase    = time.Minute
	runPerItem = 200 * time.Microsecond
)

// started is the API's answer to a start.
type started struct {
	Run   string `json:"run"`
	Items int64  `json:"items"`
}

// work is what a run does: that of an endpoint, or of a plan on record.
type work struct {
	endpoint, plan string
	chunk, flight  int // requests of so many items, so many at once; 0: as it is by itself
}

func (w work) query(query url.Values) {
	if w.plan != "" {
		query.Set("plan_ref", w.plan)
		return
	}
	query.Set("endpoint", w.endpoint)
	if w.chunk > 0 {
		query.Set("chunk", strconv.Itoa(w.chunk))
	}
	if w.flight > 0 {
		query.Set("in_flight", strconv.Itoa(w.flight))
	}
}

// start streams the items to the API as CSV and returns when the run is under way.
func (b *bed) start(ctx context.Context, of work, input items) (run started, err error) {
	query := url.Values{"key": {"id"}, "format": {"csv"}}
	of.query(query)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.api+"/api/v1/runs?"+query.Encode(), input.csv())
	if err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	req.Header.Set("Content-Type", "text/csv")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	if resp.StatusCode != http.StatusCreated {
		return run, fmt.Errorf("start a run: the API answers %s: %s", resp.Status, body)
	}
	if err := json.Unmarshal(body, &run); err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	if run.Items != int64(input.n) {
		return run, fmt.Errorf("start a run: the API took %d items of %d", run.Items, input.n)
	}
	return run, nil
}

// complete runs the items to their end and returns the run and when the completion event came.
func (b *bed) complete(ctx context.Context, of work, input items) (done finish, err error) {
	ctx, cancel := context.WithTimeout(ctx, runBase+time.Duration(input.n)*runPerItem)
	defer cancel()
	run, err := b.start(ctx, of, input)
	if err != nil {
		return done, err
	}
	loaded := time.Now()
	done, err = b.completion(ctx, run.Run)
	done.loaded = loaded
	return done, err
}

// completion waits for the event of a run that completes.
func (b *bed) completion(ctx context.Context, run string) (done finish, err error) {
	for {
		select {
		case done := <-b.finished:
			if done.run == run {
				return done, nil
			}
		case <-b.node.exited:
			return done, b.node.ended()
		case <-b.service.exited:
			return done, b.service.ended()
		case <-ctx.Done():
			return done, fmt.Errorf("wait for run %s: %w; the node said:\n%s", run, ctx.Err(), b.node.said.String())
		}
	}
}

// runProof counts the parts of the first steps that equal the stored payload of their item, which is what was sent, as
// far as SQL can tell.
const runProof = `SELECT count(*) FROM batchrun r
JOIN work_queue q ON q.run_id = r.id
JOIN work_part p ON p.run_id = q.run_id AND p.ordinal = q.ordinal AND p.step < $2 AND p.generation = 1
WHERE r.id = $1 AND r.state = 'completed' AND r.done = r.items AND r.failed = 0
  AND convert_from(p.result, 'UTF8') = q.payload AND q.payload::jsonb ->> 'id' = q.item_key`

// check asks the database, not the node, whether the run is right.
func (b *bed) check(ctx context.Context, run string, n int) error {
	return b.checkParts(ctx, run, 1, n)
}

// checkParts asks whether each of n items has its parts of so many steps.
func (b *bed) checkParts(ctx context.Context, run string, steps, n int) (err error) {
	conn, err := pgx.Connect(ctx, b.database)
	if err != nil {
		return fmt.Errorf("check run %s: %w", run, err)
	}
	defer func() {
		if closeErr := conn.Close(ctx); err == nil {
			err = closeErr
		}
	}()
	var good int
	if err := conn.QueryRow(ctx, runProof, run, steps).Scan(&good); err != nil {
		return fmt.Errorf("check run %s: %w", run, err)
	}
	if good != steps*n {
		return fmt.Errorf("check run %s: %d of %d results are right", run, good, steps*n)
	}
	return nil
}
