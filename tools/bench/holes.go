package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tranchehq/tranche/endpoints"
)

// holes is what it takes to do a part of a gathered run again.
type holes struct {
	What    string  `json:"what"`
	Items   int     `json:"items"` // of the run
	Holes   int     `json:"holes"` // made
	Reset   float64 `json:"reset_seconds"`
	Again   float64 `json:"seconds_until_completed"` // from the reset
	Fetched int     `json:"items_fetched"`           // by the steps before the composition
	Made    int     `json:"items_composed"`
}

// composeEndpoint puts the three parts of an item together.
const composeEndpoint = "compose"

const composePlan = gatherPlan + `- {endpoint: compose, needs: [accounts, transactions, branches], inputs: [accounts, transactions, branches]}
`

// composed is what a composition brings.
type composed struct {
	Account, Transactions, Branch customer
}

func compose(_ context.Context, chunk *endpoints.Chunk[endpoints.None, composed]) error {
	for _, item := range chunk.Items() {
		var out composed
		for name, into := range map[string]*customer{
			"accounts": &out.Account, "transactions": &out.Transactions, "branches": &out.Branch,
		} {
			part, there, err := endpoints.PartOf[customer](item, name)
			if err != nil || !there {
				return fmt.Errorf("part %s of %s: there is %v, %w", name, item.Key, there, err)
			}
			*into = part
		}
		item.Reply(out)
	}
	return nil
}

// scattered is how many keys are reset, spread over the whole run.
const scattered = 1000

// measureHoles gathers and composes a run, and then does parts of it again: all compositions, the parts of a thousand
// items that turn out unchanged, and the same with what depends on them.
func measureHoles(ctx context.Context, l *lab, rep *report) error {
	if err := l.startService(); err != nil {
		return err
	}
	if err := l.putPlan(ctx, "name: statement\n"+composePlan[len("name: gather\n"):]); err != nil {
		return err
	}
	input := items{n: l.items}
	begun := time.Now()
	done, err := l.complete(ctx, work{plan: "statement"}, input)
	if err != nil {
		return err
	}
	first := holes{What: "gather three parts and compose, from the start", Items: input.n, Holes: input.n,
		Again: time.Since(begun).Seconds()}
	if err := l.count(ctx, done.run, 1, &first); err != nil {
		return err
	}
	rep.Holes = append(rep.Holes, first)
	keys := input.keys(scattered)
	for i, c := range []struct {
		what string
		n    int
		keys []byte
		args []string
	}{
		{"compose everything again", input.n, nil, []string{"--step", composeEndpoint, "--all"}},
		{"fetch 1,000 scattered parts again, unchanged", scattered, keys, []string{"--step", "accounts", "--keys", "-"}},
		{"the same with their compositions", scattered, keys, []string{"--step", "accounts", "--keys", "-", "--cascade"}},
	} {
		h := holes{What: c.what, Items: input.n, Holes: c.n}
		if err := l.refill(ctx, done.run, i+2, &h, c.keys, c.args); err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		fmt.Fprintf(os.Stderr, "holes     %-46s reset %.3f s, completed after %.2f s\n", h.What, h.Reset, h.Again)
		rep.Holes = append(rep.Holes, h)
	}
	return nil
}

// refill resets what the arguments name and waits until the run has completed again.
func (l *lab) refill(ctx context.Context, run string, generation int, h *holes, keys []byte, args []string) error {
	timed, cancel := context.WithTimeout(ctx, runBase+time.Duration(h.Items)*runPerItem)
	defer cancel()
	begun := time.Now()
	if _, err := l.command(timed, bytes.NewReader(keys), append([]string{"run", "reset", run}, args...)...); err != nil {
		return err
	}
	h.Reset = time.Since(begun).Seconds()
	if _, err := l.completion(timed, run); err != nil {
		return err
	}
	h.Again = time.Since(begun).Seconds()
	return l.count(ctx, run, generation, h)
}

const countParts = `SELECT count(*)::float8 FROM work_part p JOIN run_step s USING (run_id, step)
WHERE p.run_id = $1 AND p.generation = $2 AND (s.name = $3) = $4 AND p.result IS NOT NULL`

// count asks the database what a generation of the run has brought.
func (l *lab) count(ctx context.Context, run string, generation int, h *holes) error {
	made, err := l.number(ctx, countParts, run, generation, composeEndpoint, true)
	if err != nil {
		return err
	}
	fetched, err := l.number(ctx, countParts, run, generation, composeEndpoint, false)
	h.Made, h.Fetched = int(made), int(fetched)
	return err
}

// keys returns n keys spread over the items, one a line.
func (in items) keys(n int) []byte {
	var text []byte
	for k := range n {
		text = append(in.appendKey(text, k*(in.n/n)), '\n')
	}
	return text
}

func (r *report) refills() *table {
	t := &table{heading: []string{"what is done again", "items", "reset s", "completed after s",
		"items/s", "parts fetched", "composed"}}
	for _, h := range r.Holes {
		t.add(h.What, thousands(float64(h.Holes)), fmt.Sprintf("%.3f", h.Reset), fmt.Sprintf("%.2f", h.Again),
			thousands(float64(h.Holes)/h.Again), thousands(float64(h.Fetched)), thousands(float64(h.Made)))
	}
	return t
}
