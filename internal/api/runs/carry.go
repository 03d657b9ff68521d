package runs

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/report"
)

// Bounds of what corrects items on their way from an earlier run: it is held in memory.
const (
	maxCarriedFixes     = 100_000
	maxCarriedFixesSize = 64 << 20
)

func (f *ItemSource) validateCarried() error {
	if f.SQL != "" || f.Stream != "" {
		return kernel.BadInput("give one of from_run, sql and stream: the items come from one place")
	}
	for _, s := range f.FromStates {
		if !slices.Contains([]string{"failed", "missing", "cancelled"}, s) {
			return kernel.BadInput(fmt.Sprintf("from_state is %q; it must be failed, missing or cancelled",
				kernel.Cut(s, kernel.MaxEchoed)))
		}
	}
	return nil
}

// states are the outcomes of the items that are taken. What a run had no outcome for when it was cancelled is missing.
func (f *ItemSource) states() (all []workqueue.Outcome) {
	if len(f.FromStates) == 0 || slices.Contains(f.FromStates, "failed") {
		all = append(all, workqueue.OutcomeFailed)
	}
	if len(f.FromStates) == 0 || slices.Contains(f.FromStates, "missing") || slices.Contains(f.FromStates, "cancelled") {
		all = append(all, workqueue.OutcomeMissing)
	}
	return all
}

// carrying takes items of earlier runs.
type carrying struct{ s *Starts }

// plan resolves the run that settings carry on. Its plan and parameters are those of the new run, where others are not
// given.
func (c carrying) plan(ctx context.Context, set *RunSettings,
) (run workqueue.RunID, plan *gather.Plan, version int, err error) {
	if set.FromRun == "" {
		return run, nil, 0, nil
	}
	id, err := inspect.New(c.s.Store).Resolve(ctx, set.FromRun)
	if err != nil {
		return run, nil, 0, err
	}
	set.FromRun = id.String()
	view, err := inspect.New(c.s.Store).Run(ctx, id)
	if err != nil {
		return run, nil, 0, err
	}
	if set.Source == "" {
		set.Source = "run " + set.FromRun
	}
	if len(set.Params) == 0 {
		set.Params = maps.Clone(view.Params)
	}
	if set.Endpoint+set.Plan+set.PlanRef != "" {
		return id, nil, 0, nil
	}
	plan = &gather.Plan{}
	if err := json.Unmarshal(view.Spec, plan); err != nil {
		return run, nil, 0, fmt.Errorf("read the plan of run %s: %w", id, err)
	}
	return id, plan, view.Version, nil
}

// items reads those of an earlier run, with the payloads of a body laid over them.
func (c carrying) items(ctx context.Context, set *RunSettings, config *intake.Config, items io.Reader,
) (*intake.Reader, error) {
	id, err := inspect.New(c.s.Store).Resolve(ctx, set.FromRun)
	if err != nil {
		return nil, err
	}
	from, err := report.New(c.s.Store).NewCarried(ctx, id, set.states())
	if err != nil {
		return nil, err
	}
	fixes, key, err := c.fixes(ctx, id, set, *config, items)
	if err != nil {
		return nil, err
	}
	set.corrections = digestOf(fixes)
	used := map[string]bool{}
	taken := 0
	return intake.Carry(key, *config, func(item *row.Item) error {
		key, payload, err := from.Next(ctx)
		switch {
		case errors.Is(err, io.EOF) && taken+len(fixes) == 0:
			return nothingToCarry(id, set.FromStates)
		case errors.Is(err, io.EOF) && len(used) < len(fixes):
			maps.DeleteFunc(fixes, func(key, _ string) bool { return used[key] })
			return notCarried(id, fixes)
		case err != nil:
			return err
		}
		taken++
		item.Key, item.Payload = key, append(item.Payload[:0], payload...)
		if fixed, ok := fixes[key]; ok {
			if used[key] {
				return kernel.BadInput(fmt.Sprintf("what corrects items has key %.80q, which several items of run %s have, and "+
					"which of them is meant cannot be told; nothing was started, leave it out", key, id))
			}
			item.Payload = append(item.Payload[:0], fixed...)
			used[key] = true
		}
		return nil
	}), nil
}

func nothingToCarry(id workqueue.RunID, states []string) error {
	if len(states) == 0 {
		states = []string{"failed", "missing"}
	}
	return &row.InputError{Err: row.ErrNoRows, Reason: fmt.Sprintf("run %s has no items in these states: %s; "+
		"what it has is in: tranche run show %s", id, strings.Join(states, ", "), id)}
}

// digestOf tells corrections from others, in whatever order and format they came.
func digestOf(fixes map[string]string) string {
	if len(fixes) == 0 {
		return ""
	}
	sum := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(fixes)) {
		_, _ = fmt.Fprintf(sum, "%q%q", key, fixes[key]) // a hash takes everything
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func notCarried(id workqueue.RunID, fixes map[string]string) error {
	keys := slices.Sorted(maps.Keys(fixes))
	shown := make([]string, min(len(keys), 20))
	for i := range shown {
		shown[i] = fmt.Sprintf("%.80q", keys[i])
	}
	more := ""
	if n := len(keys) - len(shown); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return kernel.BadInput(fmt.Sprintf("what corrects items has keys that are not among those taken from run %s: %s%s; "+
		"nothing was started, leave them out", id, strings.Join(shown, ", "), more))
}

// ExportOf is how an export of a run is read that people give back: its columns have the names that payloads have, and
// of what is done with them only what is said beside it holds, not what the plan says.
func ExportOf(ctx context.Context, store *database.DB, run workqueue.RunID, config intake.Config, said *gather.Items,
) *intake.Export {
	config.Encoding, config.NoHeader = said.Encoding, said.NoHeader
	config.Delimiter = said.Separator()
	config.Columns, config.Rename = said.Columns, said.Rename
	return &intake.Export{Config: config, Payloads: func(keys []string) (map[string]string, error) {
		return report.New(store).Payloads(ctx, run, keys)
	}}
}

// fixes reads payloads by key, if there are any.
func (c carrying) fixes(ctx context.Context, id workqueue.RunID, set *RunSettings, config intake.Config,
	items io.Reader,
) (fixes map[string]string, key string, err error) {
	if items == nil {
		return nil, "", nil
	}
	whole := bufio.NewReader(wholeItems{items})
	if _, err := whole.Peek(1); errors.Is(err, io.EOF) {
		return nil, "", nil
	}
	config.TakeInvalid, config.Sort, config.Source = false, "", "" // what corrects has to be right
	said, err := set.Over(gather.Single("any"))
	if err != nil {
		return nil, "", BadSetting(err)
	}
	config.Export = ExportOf(ctx, c.s.Store, id, config, &said.Items)
	rows, err := intake.Open(whole, config)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = rows.Close() }() // what was read has been read
	size := 0
	fixes = map[string]string{}
	var item row.Item
	for {
		err := rows.Next(&item)
		if errors.Is(err, io.EOF) {
			return fixes, rows.Key(), nil
		}
		if err != nil {
			return nil, "", err
		}
		if _, twice := fixes[item.Key]; twice {
			return nil, "", kernel.BadInput(fmt.Sprintf("what corrects items has key %.80q twice; give each item once",
				item.Key))
		}
		fixes[item.Key] = string(item.Payload)
		if size += len(item.Key) + len(item.Payload); len(fixes) > maxCarriedFixes || size > maxCarriedFixesSize {
			return nil, "", kernel.TooLarge(fmt.Sprintf("more than %d items or %d MiB correct items of the earlier run; start "+
				"without them, and correct the new run: tranche run correct", maxCarriedFixes, maxCarriedFixesSize>>20))
		}
	}
}
