package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

const maxTold = 3

// Sum recomputes the summary and merges groups that have become alike; call it again after adding groups.
func (e *Explanation) Sum() {
	e.Groups = merged(e.Groups)
	sortGroups(e.Groups)
	tellAmiss(e.Groups)
	e.Summary = e.summary()
}

func tellAmiss(groups []MissingGroup) {
	for i := range groups {
		groups[i].Abnormal = groups[i].Reason.Amiss()
	}
}

func (e *Explanation) summary() string {
	if e.Key != "" {
		return e.keySummary()
	}
	failed := ""
	if e.Failed > 0 {
		failed = fmt.Sprintf("; %s failed", control.Grouped(e.Failed))
	}
	switch {
	case e.Unsealed:
		return e.Summary // nothing is counted yet
	case e.Unsettled == 0 && e.Open != nil:
		return fmt.Sprintf("nothing is missing of %s so far%s; the run is open and takes more until it is sealed",
			Count(e.Items, "item"), failed)
	case e.Missing == 0 && e.Unsettled > 0:
		return fmt.Sprintf("every item of %s is done or has failed; steps are still working on %s that failed at others: %s",
			control.Grouped(e.Items), control.Grouped(e.Unsettled), e.told())
	case e.Missing == 0 && e.Failed == 0:
		return fmt.Sprintf("nothing is missing: %s done", either(e.Items == 1, "the only item is",
			"all "+Count(e.Items, "item")+" are"))
	case e.Missing == 0:
		return fmt.Sprintf("nothing is missing: %s of %s are done and %s failed", control.Grouped(e.Done),
			Count(e.Items, "item"), control.Grouped(e.Failed))
	default:
		return fmt.Sprintf("%s of %s %s missing%s: %s", control.Grouped(e.Missing), Count(e.Items, "item"),
			either(e.Missing == 1, "is", "are"), failed, e.told())
	}
}

func (e *Explanation) keySummary() string {
	if e.Missing == 0 {
		switch {
		case e.Unsettled > 0 && e.Items == 1:
			return fmt.Sprintf("%q failed%s; other steps are still working on it: %s", e.Key, failureOf(&e.Of[0]), e.told())
		case e.Failed == 0:
			return fmt.Sprintf("%q is done", e.Key)
		case e.Done == 0 && e.Items == 1:
			return fmt.Sprintf("%q failed%s", e.Key, failureOf(&e.Of[0]))
		}
		return fmt.Sprintf("%q occurs %d times: %d done, %d failed", e.Key, e.Items, e.Done, e.Failed)
	}
	if e.Items == 1 {
		return fmt.Sprintf("%q is missing: %s", e.Key, e.told())
	}
	return fmt.Sprintf("%q occurs %d times, and %d of them are missing: %s", e.Key, e.Items, e.Missing, e.told())
}

func failureOf(item *inspect.ItemView) string {
	var cause *inspect.ItemStep
	var out []string
	for i := range item.Steps {
		s := &item.Steps[i]
		switch {
		case s.State == "skipped":
			out = append(out, s.Name)
		case cause == nil && s.Error != nil && !s.Optional:
			cause = s
		}
	}
	if cause == nil || cause.Error == nil {
		return ""
	}
	text := ": " + cause.Error.Code + ": " + cause.Error.Message
	if len(item.Steps) > 1 {
		text = " in step " + cause.Name + text
	}
	if len(out) > 0 {
		text += "; it is left out of " + strings.Join(out, ", ")
	}
	return text
}

type told struct {
	items int64
	text  string
	steps []string
	needs bool // an operator must act, even if these items are counted elsewhere
}

func (t *told) String() string {
	switch len(t.steps) {
	case 0:
		return t.text
	case 1:
		return t.text + " (step " + t.steps[0] + ")"
	default:
		return fmt.Sprintf("%s (%d steps)", t.text, len(t.steps))
	}
}

// told summarizes the first groups, merging those that read alike. An item that several steps miss is counted once.
func (e *Explanation) told() string {
	var all []*told
	for i := range e.Groups {
		g := &e.Groups[i]
		text := g.headline()
		j := slices.IndexFunc(all, func(t *told) bool { return t.text == text })
		if j < 0 {
			j, all = len(all), append(all, &told{text: text})
		}
		t := all[j]
		t.needs = t.needs || g.needsSomebody()
		if len(e.Steps) == 0 {
			t.items += g.Items
			continue
		}
		t.items += g.Counted
		if g.Step != "" && !slices.Contains(t.steps, g.Step) {
			t.steps = append(t.steps, g.Step)
		}
	}
	all = slices.DeleteFunc(all, func(t *told) bool { return t.items == 0 && !t.needs })
	if len(all) == 1 {
		return all[0].String()
	}
	var parts []string
	var rest int64
	for i, t := range all {
		switch {
		case i >= maxTold:
			rest += t.items
		case t.items == 0:
			parts = append(parts, t.String())
		default:
			parts = append(parts, control.Grouped(t.items)+" "+t.String())
		}
	}
	if rest > 0 {
		parts = append(parts, control.Grouped(rest)+" for other reasons")
	}
	return strings.Join(parts, "; ")
}

func (g *MissingGroup) headline() string {
	if kind, _ := workqueue.TargetKind(g.Endpoint); kind != workqueue.KindEndpoint && g.Reason == ReasonPostponed {
		return "not to be worked on at the moment"
	}
	rule := g.Reason.Rule()
	return rule.items(g.Endpoint)
}

// groups explains the missing items of one run, each in exactly one group.
func (f *facts) groups(id workqueue.RunID) []MissingGroup {
	r := f.runs[id]
	var all []MissingGroup
	add := func(g MissingGroup) {
		if g.Items != 0 {
			all = append(all, g)
		}
	}
	if r.state == "cancelled" { // nothing moves any more, regardless of the planes
		for _, st := range r.steps {
			rest := f.group(r, st, st.endpoint, "waiting", st.missing)
			f.explainRest(r, &rest)
			add(rest)
		}
		return all
	}
	live := map[workqueue.Step]share{}
	for i := range f.slices {
		if s := &f.slices[i]; s.run == id {
			live[s.step] = live[s.step].plus(s.held)
			add(f.sliceGroup(r, s))
		}
	}
	for _, st := range r.steps {
		add(f.readyGroup(r, st))
		add(f.heldGroup(r, st))
		rest := st.missing.minus(st.ready).minus(st.held).minus(live[st.step])
		for needs, items := range st.waits {
			rest = rest.minus(items)
			add(f.needsGroup(r, st, needs, items))
		}
		stray := f.group(r, st, st.endpoint, "waiting", rest)
		f.explainRest(r, &stray)
		add(stray)
	}
	add(f.unplacedGroup(r))
	all = merged(all)
	sortGroups(all)
	return all
}

func (f *facts) group(r *runFacts, st *stepFacts, endpoint, state string, of share) MissingGroup {
	return MissingGroup{run: r.id, Step: st.name, Endpoint: endpoint, State: state, Items: of.items, Counted: of.counted}
}

func (f *facts) readyGroup(r *runFacts, st *stepFacts) MissingGroup {
	g := f.group(r, st, st.endpoint, "ready", st.ready)
	g.Since = r.startedAt
	f.claimable(r, st, &g)
	f.withoutQuorum(st, &g)
	f.refusedByNATS(st, &g)
	return g
}

func (f *facts) heldGroup(r *runFacts, st *stepFacts) MissingGroup {
	if r.ordered {
		return f.lineGroup(r, st)
	}
	g := f.group(r, st, st.endpoint, "held", st.held)
	g.Since = r.startedAt
	if r.hold != "" && r.hold != string(control.HoldCanary) {
		f.holdGroup(r, &g)
		g.by = []cameBy{{"a canary holds them back", g.Items}}
		return g
	}
	if r.hold != "" || r.canaryState == "waiting" {
		f.holdGroup(r, &g)
		return g
	}
	if len(f.alive) == 0 {
		g.by = []cameBy{{"a canary holds them back", g.Items}}
		f.noNode(&g)
		return g
	}
	f.say(&g, ReasonSampling, Row{"canary": int64(r.canary), "auto": r.canaryAutoApprove})
	return g
}

func (f *facts) holdGroup(r *runFacts, g *MissingGroup) {
	if r.heldAt != nil {
		g.Since = r.heldAt
	}
	row := Row{"detail": r.holdDetail, "failed": r.failed}
	if r.heldBy != workqueue.Engine {
		row["by"] = r.heldBy
	}
	kind := HeldBy(cmp.Or(control.Hold(r.hold), control.HoldCanary)) // a canary holds nothing else back
	g.Say(kind, row)
	if again := map[Kind]string{
		RunOverLimit: "rerun the failed items, then resume the run",
		RunFailFast:  "when the service is fixed, rerun the failed items, then resume the run",
	}[kind]; again != "" {
		g.Advice = slices.Insert(g.Advice, 1, r.again(again)...)
	}
}

// HeldBy is the kind of a hold.
func HeldBy(hold control.Hold) Kind {
	return cmp.Or(map[control.Hold]Kind{control.HoldThreshold: RunOverLimit, control.HoldFailFast: RunFailFast,
		control.HoldCanary: RunApproval}[hold], RunHeld)
}

// explainRest explains items in no plane and no slice that wait for nothing.
func (f *facts) explainRest(r *runFacts, g *MissingGroup) {
	if r.state == "cancelled" {
		g.Say(ReasonCancelled, nil)
		g.Since = r.finishedAt
		return
	}
	g.Say(ReasonStray, nil)
	g.Since = r.startedAt
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// ShellWord quotes a text as one word for a shell.
func ShellWord(s string) string {
	plain := s != "" && !strings.HasPrefix(s, "-") && strings.IndexFunc(s, func(r rune) bool {
		return !strings.ContainsRune("-_./:@%+=,", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

type cameBy struct {
	what  string
	items int64
}

// merged merges groups that differ only in how their items got where they are, and keeps all the ways.
func merged(all []MissingGroup) []MissingGroup {
	slices.SortStableFunc(all, func(a, b MissingGroup) int { return cmp.Compare(b.Items, a.Items) })
	groups := mergedBy(all, func(g *MissingGroup) groupKey {
		return groupKey{g.State, g.Reason, g.Owner, g.Who, g.Step, g.Endpoint, g.needs}
	}, (*MissingGroup).join)
	for i := range groups {
		groups[i].tell()
	}
	return groups
}

// groupKey is what groups must share to be shown as one: texts, kinds, owners and sets of steps.
type groupKey [7]any

// mergedBy merges groups with the same key, as far as they can be joined.
func mergedBy(
	all []MissingGroup, key func(*MissingGroup) groupKey, join func(g, h *MissingGroup) bool,
) []MissingGroup {
	groups, at := []MissingGroup{}, map[groupKey]int{}
	for i := range all {
		k := key(&all[i])
		if j, known := at[k]; known && join(&groups[j], &all[i]) {
			continue
		}
		at[k] = len(groups)
		groups = append(groups, all[i])
	}
	return groups
}

func (g *MissingGroup) join(h *MissingGroup) bool {
	g.Items, g.Counted = g.Items+h.Items, g.Counted+h.Counted
	g.Slices, g.Answered = g.Slices+h.Slices, g.Answered+h.Answered
	g.Since, g.When = earlier(g.Since, h.Since), earlier(g.When, h.When)
	if g.Last == nil || h.Last != nil && h.Last.At.After(g.Last.At) {
		g.Last = h.Last
	}
	if h.until.After(g.until) {
		g.until = h.until
	}
	for _, by := range h.by {
		i := slices.IndexFunc(g.by, func(b cameBy) bool { return b.what == by.what })
		if i < 0 {
			g.by = append(g.by, by)
		} else {
			g.by[i].items += by.items
		}
	}
	return true
}

const maxWays = 3

// tell puts the ways in which the items got here before Why, and the latest When after Next. Call it once.
func (g *MissingGroup) tell() {
	var ways []string
	var rest int64
	for i, by := range g.by {
		switch {
		case len(g.by) == 1:
			ways = append(ways, by.what)
		case i < maxWays:
			ways = append(ways, fmt.Sprintf("%s (%s)", by.what, Count(by.items, "item")))
		default:
			rest += by.items
		}
	}
	if rest > 0 {
		ways = append(ways, fmt.Sprintf("or something else (%s)", Count(rest, "item")))
	}
	if g.Why != "" {
		ways = append(ways, g.Why)
	}
	g.Why, g.by = strings.Join(ways, "; "), nil
	if g.When != nil && g.until.Sub(*g.When) > time.Second {
		g.Next += ", one at a time until " + clock(g.until)
	}
	g.until = time.Time{}
}

// MergeSteps merges the groups of several steps that say the same. Call it last: endpoints may be lost.
func (e *Explanation) MergeSteps() {
	e.Groups = mergedBy(e.Groups, func(g *MissingGroup) groupKey {
		key := groupKey{g.State, g.Reason, g.Owner, g.Who, g.Why, g.Next, fmt.Sprint(g.ofAnyStep())}
		switch g.Reason {
		case ReasonNeeds: // each says which step needs which
			key[3], key[4] = "", ""
		case ReasonRate: // each says how long its items take; the first has most
			key[5] = ""
		}
		return key
	}, (*MissingGroup).joinStep)
}

// ofAnyStep is the group's advice with NAME in place of its step.
func (g *MissingGroup) ofAnyStep() []Advice {
	all := slices.Clone(g.Advice)
	for i := range all {
		if rest, ok := strings.CutSuffix(all[i].Command, " --step "+ShellWord(g.Step)); ok {
			all[i].Command = rest + " --step NAME"
		}
	}
	return all
}

// joinStep adds a group of another step, and reports whether it did: of one step it adds none.
func (g *MissingGroup) joinStep(h *MissingGroup) bool {
	if h.Step == "" || g.Step == h.Step ||
		slices.ContainsFunc(g.Steps, func(p StepPart) bool { return p.Step == h.Step }) {
		return false
	}
	if len(g.Steps) == 0 {
		g.Steps = []StepPart{{g.Step, g.Items}}
	}
	g.Steps = append(g.Steps, StepPart{h.Step, h.Items})
	most := max(g.Items, h.Items)
	g.join(h)
	g.Items, g.Step = max(most, g.Counted), ""
	if g.Endpoint != h.Endpoint {
		g.Endpoint = ""
	}
	if g.Reason == ReasonNeeds {
		g.needed = slices.Concat(g.needed, h.needed)
		slices.Sort(g.needed)
		g.needed = slices.Compact(g.needed)
		g.Who = stepsText(g.needed)
	}
	if g.Why != h.Why {
		g.Why += "; " + h.Why
	}
	g.Advice = h.ofAnyStep()
	return true
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

// sortGroups orders groups by urgency, then by items: those that need an operator; those that keep the run from
// ending; those behind requests in flight; those that a node handles immediately; those that wait for other steps.
func sortGroups(all []MissingGroup) {
	slices.SortStableFunc(all, func(a, b MissingGroup) int {
		return cmp.Or(cmp.Compare(a.urgency(), b.urgency()), cmp.Compare(b.Items, a.Items),
			cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
}

func (g *MissingGroup) urgency() int {
	switch {
	case g.needsSomebody():
		return 0
	case g.Owner == OwnerNobody:
		return 1
	case g.Owner == OwnerStep:
		return 5
	case g.Owner == OwnerNode:
		return 4
	case g.Behind():
		return 3
	default:
		return 2
	}
}

// needsSomebody reports whether the items wait until an operator acts.
func (g *MissingGroup) needsSomebody() bool { return g.Owner == OwnerOperator || g.Owner == OwnerNATS }

// Behind reports whether the items wait for requests in flight to end.
func (g *MissingGroup) Behind() bool { return g.Reason.Rule().Behind }
