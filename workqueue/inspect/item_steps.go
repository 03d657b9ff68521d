package inspect

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

// Settled reports whether the item has come to its end in the step.
func (s *ItemStep) Settled() bool {
	return s.State == "done" || s.State == "failed" || s.State == "skipped"
}

// overall is the outcome of an item over all steps.
func overall(steps []ItemStep) workqueue.Outcome {
	outcome := workqueue.OutcomeDone
	for i := range steps {
		switch {
		case steps[i].State == "failed" && !steps[i].Optional:
			return workqueue.OutcomeFailed
		case !steps[i].Settled():
			outcome = workqueue.OutcomeMissing
		}
	}
	return outcome
}

// relate says what steps wait for, what they are left out for, and which results may be made again. The steps come in
// their order, so what a step needs stands before it.
func relate(steps []ItemStep) {
	at := map[workqueue.Step]*ItemStep{}
	for i := range steps {
		s := &steps[i]
		at[s.Step] = s
		for _, need := range s.needs {
			if n := at[need]; n != nil {
				s.behind(n)
			}
		}
		s.Approval = s.Approval && !s.Settled()
		if s.barrier && !s.Approval && !s.Settled() && len(s.WaitsFor) == 0 {
			s.WaitsFor = s.Needs // of other items
		}
	}
}

// behind takes in where the item is in a step that is needed.
func (s *ItemStep) behind(n *ItemStep) {
	switch s.State {
	case "waiting":
		if !n.Settled() {
			s.WaitsFor = append(s.WaitsFor, n.Name)
		}
	case "skipped":
		if n.State == "failed" && !n.Optional {
			s.LeftOutBy = addNew(s.LeftOutBy, n.Name)
		} else if n.State == "skipped" && !n.Optional {
			s.LeftOutBy = addNew(s.LeftOutBy, n.LeftOutBy...)
		}
	case "done", "failed":
		s.Stale = s.Stale || !n.Settled() || n.Stale
	}
}

func addNew(to []string, names ...string) []string {
	for _, name := range names {
		if !slices.Contains(to, name) {
			to = append(to, name)
		}
	}
	return to
}

// attachParts gives each step its newest part, if that counts, and those before it.
func attachParts(rows pgx.Rows, steps []ItemStep) error {
	var number workqueue.Step
	var p itemPart
	to := []any{&number, &p.Generation, &p.at, &p.service, &p.result, &p.contentType, &p.Size, &p.SHA256, &p.large,
		&p.code, &p.message}
	_, err := pgx.ForEachRow(rows, to, func() error {
		i := slices.IndexFunc(steps, func(s ItemStep) bool { return s.Step == number })
		if i < 0 {
			return fmt.Errorf("a part of step %d, which the run does not have", number)
		}
		steps[i].take(p)
		p.result = nil // it is the step's now
		return nil
	})
	return err
}

// itemPart is a part as it is read.
type itemPart struct {
	EarlierPart

	at          *time.Time
	service     string
	result      []byte
	contentType string
	large       bool
	code        *string
	message     string
}

// take adds a part; the newest comes first.
func (s *ItemStep) take(p itemPart) {
	p.RecordedAt = p.at
	if p.code != nil {
		p.Error = &ItemError{Code: *p.code, Message: p.message}
	}
	counts := s.Generation == 0 && (s.State == "done" && p.Error == nil || s.State == "failed" && p.Error != nil)
	if !counts || len(s.Earlier) > 0 {
		s.Earlier = append(s.Earlier, p.EarlierPart)
		return
	}
	s.Generation, s.RecordedAt, s.Service, s.Error = p.Generation, p.at, p.service, p.Error
	s.Size, s.SHA256, s.ContentType = p.Size, p.SHA256, p.contentType
	s.Large = p.large
	switch {
	case p.large: // what stands in its place tells nothing that is not told here
	case p.contentType == "" && json.Valid(p.result):
		s.Result = p.result
	default:
		s.ResultBytes = p.result
	}
}
