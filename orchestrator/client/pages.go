package client

import (
	"context"
	"iter"
)

// all yields the entries of a list, page by page, and ends with the first error. A page is fetched when the one before
// it has been yielded.
func all[T any](page func() (entries []T, more bool, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			entries, more, err := page()
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, entry := range entries {
				if !yield(entry, nil) {
					return
				}
			}
			if !more {
				return
			}
		}
	}
}

// AllRuns yields runs, newest first.
func (c *Client) AllRuns(
	ctx context.Context, params ListRunsParams, options ...CallOption,
) iter.Seq2[RunSummary, error] {
	return all(func() ([]RunSummary, bool, error) {
		list, err := c.ListRuns(ctx, params, options...)
		params.Before = list.Next
		return list.Runs, list.Next != "", err
	})
}

// AllPlans yields plans on record by name, each in its newest version.
func (c *Client) AllPlans(
	ctx context.Context, params ListPlansParams, options ...CallOption,
) iter.Seq2[PlanSummary, error] {
	return all(func() ([]PlanSummary, bool, error) {
		list, err := c.ListPlans(ctx, params, options...)
		params.After = list.Next
		return list.Plans, list.Next != "", err
	})
}

// AllPlanVersions yields the versions of a plan, newest first.
func (c *Client) AllPlanVersions(
	ctx context.Context, plan string, params ListPlanVersionsParams, options ...CallOption,
) iter.Seq2[PlanSummary, error] {
	return all(func() ([]PlanSummary, bool, error) {
		list, err := c.ListPlanVersions(ctx, plan, params, options...)
		params.Before = list.Next
		return list.Versions, list.Next != 0, err
	})
}

// AllAudit yields what was done, newest first.
func (c *Client) AllAudit(
	ctx context.Context, params ListAuditParams, options ...CallOption,
) iter.Seq2[AuditEntry, error] {
	return all(func() ([]AuditEntry, bool, error) {
		list, err := c.ListAudit(ctx, params, options...)
		params.Before = list.Next
		return list.Entries, list.Next != 0, err
	})
}

// AllDeadLetters yields dead letters, newest first.
func (c *Client) AllDeadLetters(
	ctx context.Context, params ListDeadLettersParams, options ...CallOption,
) iter.Seq2[DeadLetter, error] {
	return all(func() ([]DeadLetter, bool, error) {
		list, err := c.ListDeadLetters(ctx, params, options...)
		if list.Next != nil {
			params.After = *list.Next
		}
		return list.Letters, list.Next != nil, err
	})
}

// AllQuarantined yields messages that could not be taken, newest first.
func (c *Client) AllQuarantined(
	ctx context.Context, params ListQuarantinedParams, options ...CallOption,
) iter.Seq2[QuarantinedView, error] {
	return all(func() ([]QuarantinedView, bool, error) {
		list, err := c.ListQuarantined(ctx, params, options...)
		params.After = list.Next
		return list.Messages, list.Next != 0, err
	})
}

// AllItems yields items of a run in their order.
func (c *Client) AllItems(
	ctx context.Context, run string, params ListItemsParams, options ...CallOption,
) iter.Seq2[ItemRow, error] {
	return all(func() ([]ItemRow, bool, error) {
		list, err := c.ListItems(ctx, run, params, options...)
		if list.Next != nil {
			after := int64(*list.Next)
			params.After = &after
		}
		return list.Items, list.Next != nil, err
	})
}

// AllSlices yields the requests of a run that are in progress.
func (c *Client) AllSlices(
	ctx context.Context, run string, params ListSlicesParams, options ...CallOption,
) iter.Seq2[SliceView, error] {
	return all(func() ([]SliceView, bool, error) {
		list, err := c.ListSlices(ctx, run, params, options...)
		if list.Next != nil {
			params.After = *list.Next
		}
		return list.Slices, list.Next != nil, err
	})
}
