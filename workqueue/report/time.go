package report

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// GenerationReport is one generation of a run: its start, or a rerun. Seconds sums up the next four.
type GenerationReport struct {
	Generation workqueue.Generation `json:"generation"`
	StartedAt  time.Time            `json:"started_at"`
	EndedAt    *time.Time           `json:"ended_at,omitempty" doc:"absent while it continues"`

	Ended string `json:"ended,omitempty" enum:"completed,cancelled,rerun,reset,corrected" doc:"rerun: by the next"`

	Seconds        float64 `json:"seconds"`
	WaitingSeconds float64 `json:"waiting_seconds" doc:"until the first request was sent"`
	WorkingSeconds float64 `json:"working_seconds"`
	PausedSeconds  float64 `json:"paused_seconds" doc:"held, regardless of other states"`
	ClosingSeconds float64 `json:"closing_seconds" doc:"from the last answer to the end"`
	Done           int64   `json:"done" doc:"items that got their result in it"`
	Failed         int64   `json:"failed"`
	Rate           float64 `json:"rate" doc:"items a second with a final outcome, pauses left out"`
}

type lifetime struct {
	began *time.Time // nil: it is loading
	held  bool       // held now
}

// runEvents are those that begin or end a generation or a pause; a hold in a payload is that after the event. It scans
// the table: run_event_completion and the run's times do not give all events, which are few.
const runEvents = `
SELECT kind, generation, at, coalesce(payload ->> 'hold', '') <> '' FROM run_event
WHERE run_id = $1 AND (payload ? 'hold' OR kind IN ('approved', 'completed', 'cancelled')) ORDER BY at, id`

const requestsByGeneration = `
SELECT generation, min(` + plane.AskedAt + `), max(ended_at) FILTER (WHERE state = 'recorded')
FROM work_slice WHERE run_id = $1 AND ` + plane.AskedAt + ` IS NOT NULL GROUP BY generation`

// partsByGeneration scans the primary key of work_result. A run of one generation has its counts elsewhere.
const partsByGeneration = `
SELECT generation, count(*) FILTER (WHERE error_code IS NULL), count(*) FILTER (WHERE error_code IS NOT NULL)
FROM work_result WHERE run_id = $1 GROUP BY generation`

// itemsByGeneration counts an item once for each generation: as failed if a required step failed it in that
// generation, as done if it got a result there, which is the part of a step that no other needs.
const itemsByGeneration = `
WITH steps AS MATERIALIZED (
    SELECT s.step, s.optional,
        NOT EXISTS (SELECT 1 FROM run_step n WHERE n.run_id = $1 AND s.step = ANY (n.needs)) AS last
    FROM run_step s WHERE s.run_id = $1
)
SELECT generation, count(*) FILTER (WHERE done AND NOT failed), count(*) FILTER (WHERE failed)
FROM (
    SELECT p.generation, p.ordinal, bool_or(p.error_code IS NULL AND s.last) AS done,
        bool_or(p.error_code IS NOT NULL AND NOT s.optional) AS failed
    FROM work_result p JOIN steps s USING (step)
    WHERE p.run_id = $1 GROUP BY p.generation, p.ordinal
) items GROUP BY generation`

func readGenerations(ctx context.Context, tx pgx.Tx, r *RunReport, life lifetime) ([]GenerationReport, error) {
	history, err := readHistory(ctx, tx, r, life)
	if err != nil {
		return nil, err
	}
	var g workqueue.Generation
	var first, last *time.Time
	err = pg.Each(pg.Rows(ctx, tx, requestsByGeneration, r.ID), []any{&g, &first, &last}, func() {
		if a := history.act(g); a != nil {
			a.first, a.last = first, last
		}
	})
	if err != nil {
		return nil, err
	}
	reports := make([]GenerationReport, len(history.acts))
	for i := range history.acts {
		reports[i] = history.report(i, r.At)
	}
	if err := countParts(ctx, tx, r, reports); err != nil {
		return nil, err
	}
	for i := range reports {
		if active := reports[i].Seconds - reports[i].PausedSeconds; active > 0 {
			reports[i].Rate = float64(reports[i].Done+reports[i].Failed) / active
		}
	}
	return reports, nil
}

func countParts(ctx context.Context, tx pgx.Tx, r *RunReport, reports []GenerationReport) error {
	if len(reports) == 1 {
		reports[0].Done, reports[0].Failed = r.Done, r.Failed
		return nil
	}
	statement := partsByGeneration
	if r.StepCount > 1 {
		statement = itemsByGeneration
	}
	var g workqueue.Generation
	var done, failed int64
	return pg.Each(pg.Rows(ctx, tx, statement, r.ID), []any{&g, &done, &failed}, func() {
		for i := range reports {
			if reports[i].Generation == g {
				reports[i].Done, reports[i].Failed = done, failed
			}
		}
	})
}

type history struct {
	acts  []act
	holds []span
}

// span is a period; its end is zero while it lasts.
type span struct{ from, to time.Time }

type act struct {
	generation workqueue.Generation
	span

	ended       string
	first, last *time.Time // the first request, and the last recorded answer
}

func readHistory(ctx context.Context, tx pgx.Tx, r *RunReport, life lifetime) (*history, error) {
	s := &history{}
	if life.began != nil { // the start is also an event, but a run cannot do without it
		s.acts = append(s.acts, act{generation: 1, span: span{from: *life.began}})
	}
	var kind workqueue.EventKind
	var g workqueue.Generation
	var at time.Time
	var held bool
	err := pg.Each(pg.Rows(ctx, tx, runEvents, r.ID), []any{&kind, &g, &at, &held}, func() { s.tell(kind, g, at, held) })
	if r.FinishedAt != nil {
		s.end(*r.FinishedAt, r.State) // in case its events are gone
	}
	if !life.held {
		s.hold(r.At, false)
	}
	return s, err
}

func (s *history) tell(kind workqueue.EventKind, g workqueue.Generation, at time.Time, held bool) {
	s.hold(at, held)
	switch kind {
	case workqueue.EventResumed, workqueue.EventApproved:
		if n := len(s.acts); n > 0 && g > s.acts[n-1].generation { // of a cancelled run
			s.acts = append(s.acts, act{generation: g, span: span{from: at}})
		}
	case workqueue.EventRerun, workqueue.EventReset, workqueue.EventCorrected:
		s.end(at, string(kind))
		s.acts = append(s.acts, act{generation: g, span: span{from: at}})
	case workqueue.EventCompleted, workqueue.EventCancelled:
		s.end(at, string(kind))
	}
}

func (s *history) hold(at time.Time, held bool) {
	n := len(s.holds)
	switch open := n > 0 && s.holds[n-1].to.IsZero(); {
	case held && !open:
		s.holds = append(s.holds, span{from: at})
	case open && !held:
		s.holds[n-1].to = at
	}
}

func (s *history) end(at time.Time, how string) {
	if n := len(s.acts); n > 0 && s.acts[n-1].to.IsZero() {
		s.acts[n-1].to, s.acts[n-1].ended = at, how
	}
}

func (s *history) act(g workqueue.Generation) *act {
	for i := range s.acts {
		if s.acts[i].generation == g {
			return &s.acts[i]
		}
	}
	return nil
}

// report divides a generation's time: any time while held is a pause.
func (s *history) report(i int, now time.Time) GenerationReport {
	a := &s.acts[i]
	out := GenerationReport{Generation: a.generation, StartedAt: a.from, Ended: a.ended}
	end := now
	if !a.to.IsZero() {
		end = a.to
		out.EndedAt = &a.to
	}
	end = latest(end, a.from)
	first, last := end, end
	if a.first != nil {
		first = earliest(latest(*a.first, a.from), end)
	}
	if a.last != nil && a.ended == string(workqueue.EventCompleted) {
		last = earliest(latest(*a.last, first), end)
	}
	out.Seconds = end.Sub(a.from).Seconds()
	out.WaitingSeconds = s.awake(a.from, first, now).Seconds()
	out.WorkingSeconds = s.awake(first, last, now).Seconds()
	out.ClosingSeconds = s.awake(last, end, now).Seconds()
	out.PausedSeconds = max(out.Seconds-out.WaitingSeconds-out.WorkingSeconds-out.ClosingSeconds, 0)
	return out
}

func (s *history) awake(from, to, now time.Time) time.Duration {
	left := to.Sub(from)
	for _, h := range s.holds {
		end := h.to
		if end.IsZero() {
			end = now
		}
		if overlap := earliest(end, to).Sub(latest(h.from, from)); overlap > 0 {
			left -= overlap
		}
	}
	return max(left, 0)
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
