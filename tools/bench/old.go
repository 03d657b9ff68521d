package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// old is what a run takes while so many items of finished runs lie in the database, beside the same run on a database
// of its own that has those of one.
type old struct {
	Items    int       `json:"old_items"`
	Bytes    int64     `json:"database_bytes"`
	Seconds  []float64 `json:"seconds"`       // round by round
	Empty    []float64 `json:"empty_seconds"` // of the same rounds, in the database that has had one run
	Deletion float64   `json:"deletion_seconds"`
}

const (
	deletedWithin = 5 * time.Minute
	// restedFor is how long a run has to have ended until it can be deleted.
	restedFor = 61 * time.Second

	isGone  = `(SELECT gone_at IS NOT NULL FROM retention_run WHERE run_id = $1)`
	hasSize = `SELECT pg_database_size(current_database())`
)

// measureOld lets runs lie in a database until there are as many as are asked for, and measures at each of these numbers.
// Both nodes are up all the time, and take turns.
func measureOld(ctx context.Context, cfg config, pg *cluster, rep *report) (err error) {
	aged := cfg
	aged.bed = "old"
	return inLab(ctx, aged, pg, func(l *lab) error {
		if err := l.startService(); err != nil {
			return err
		}
		var ended []finish
		for _, runs := range cfg.oldRuns {
			for len(ended) < runs {
				begun := time.Now()
				done, err := l.complete(ctx, work{endpoint: echoEndpoint}, items{n: cfg.items})
				if err != nil {
					return fmt.Errorf("run %d: %w", len(ended)+1, err)
				}
				ended = append(ended, done)
				fmt.Fprintf(os.Stderr, "old       run %d: %.2f s\n", len(ended), done.at.Sub(begun).Seconds())
			}
			o := old{Items: len(ended) * cfg.items}
			for round := range cfg.rounds {
				done, err := l.besideEmpty(ctx, cfg, &o, round%2 == 0)
				if err != nil {
					return fmt.Errorf("%d old items: %w", o.Items, err)
				}
				ended = append(ended, done)
			}
			size, err := l.number(ctx, hasSize)
			if err != nil {
				return err
			}
			o.Bytes = int64(size)
			if o.Deletion, err = l.delete(ctx, ended[0]); err != nil {
				return err
			}
			ended = ended[1:]
			r := o.ratio()
			fmt.Fprintf(os.Stderr, "old       %d items: %.2f s, %.3f of the time after one run only (%.3f to %.3f); "+
				"one run deleted in %.2f s\n", o.Items, spreadOf(o.Seconds).median, r.median, r.low, r.high, o.Deletion)
			rep.Old = append(rep.Old, o)
		}
		return nil
	})
}

// besideEmpty runs the items here and in a database of its own, one after the other, and returns the run here.
func (l *lab) besideEmpty(ctx context.Context, cfg config, o *old, first bool) (own finish, err error) {
	empty, err := openBed(ctx, cfg, l.pg)
	if err != nil {
		return own, err
	}
	defer func() { err = errors.Join(err, empty.close()) }()
	// The first large run of a database finds no files yet, and takes a fifth longer.
	if _, err := empty.complete(ctx, work{endpoint: echoEndpoint}, items{n: cfg.items}); err != nil {
		return own, err
	}
	for _, here := range []bool{first, !first} {
		b, into := empty, &o.Empty
		if here {
			b, into = l.bed, &o.Seconds
		}
		if err := l.pg.checkpoint(ctx); err != nil {
			return own, err
		}
		begun := time.Now()
		done, err := b.complete(ctx, work{endpoint: echoEndpoint}, items{n: cfg.items})
		if err != nil {
			return own, err
		}
		*into = append(*into, done.at.Sub(begun).Seconds())
		if here {
			own = done
		}
	}
	return own, nil
}

// delete deletes a run as a person would, and returns how long its rows were there.
func (l *lab) delete(ctx context.Context, run finish) (seconds float64, err error) {
	if err := rest(ctx, restedFor-time.Since(run.at)); err != nil {
		return 0, err
	}
	begun := time.Now()
	if _, err := l.command(ctx, nil, "run", "delete", run.run, "--reason", "bench"); err != nil {
		return 0, err
	}
	err = l.until(ctx, deletedWithin, "the run is deleted", isGone, run.run)
	return time.Since(begun).Seconds(), err
}

func (o *old) ratio() spread {
	ratios := make([]float64, len(o.Seconds))
	for i := range ratios {
		ratios[i] = o.Seconds[i] / o.Empty[i]
	}
	return spreadOf(ratios)
}

func (r *report) olds() *table {
	t := &table{heading: []string{"old items", "database, GB", "a run, s", "after one run only, s",
		"ratio, round by round: median, min–max", "one run of them deleted, s"}}
	for i := range r.Old {
		o := &r.Old[i]
		q := o.ratio()
		t.add(thousands(float64(o.Items)), fmt.Sprintf("%.1f", float64(o.Bytes)/1e9),
			fmt.Sprintf("%.2f", spreadOf(o.Seconds).median), fmt.Sprintf("%.2f", spreadOf(o.Empty).median),
			fmt.Sprintf("%.3f, %.3f–%.3f", q.median, q.low, q.high), fmt.Sprintf("%.2f", o.Deletion))
	}
	return t
}
