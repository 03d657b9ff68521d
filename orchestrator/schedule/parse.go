package schedule

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
)

// Parse reads a schedule from YAML, or from JSON, which is YAML too. The name is what errors call the input, and the
// schedule's own unless it has a name field. Every error is a *[strictyaml.Error]. docs/schedules.md shows each field.
func Parse(name string, text []byte) (*Spec, error) {
	doc, err := strictyaml.Open("schedule", name, text, MaxBytes)
	if err != nil {
		return nil, err
	}
	s := &Spec{
		Name: name, Zone: DefaultZone, Overlap: OverlapSkip, Misfire: MisfireOnce, MisfireLimit: DefaultMisfireLimit,
		OnLate: LateReport, StartAttempts: DefaultStartAttempts, doc: doc,
	}
	if err := doc.Root.Decode(s); err != nil {
		return nil, err
	}
	return s, s.check(doc)
}

// Wrong returns an error like Parse's, at a field, for problems that only others detect, such as an unknown plan.
func (s *Spec) Wrong(field, problem string) error { return s.doc.Fail(field, "%s", problem) }

func (s *Spec) check(doc *strictyaml.Document) error {
	if err := gather.CheckName(s.Name); err != nil {
		return doc.Fail("name", "%s", problemOf(err))
	}
	if doc.Given("every") && s.Every == 0 { // otherwise a missing value
		return doc.Fail("every", "%v", checkEvery(0))
	}
	if field, err := s.compile(); err != nil {
		return doc.Fail(field, "%v", err)
	}
	if (s.Plan == "") == (s.Endpoint == "") {
		return doc.Fail("plan", "give one of plan (a saved plan) and endpoint")
	}
	name, _, _ := strings.Cut(s.Plan+s.Endpoint, "@")
	if err := gather.CheckName(name); err != nil && s.Plan != "" {
		return doc.Fail("plan", "%s", problemOf(err))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Params)) {
		if n := len(s.Params[name]); n > maxParamBytes {
			return doc.Fail("params."+name, "it has %d bytes, and at most %d are allowed", n, maxParamBytes)
		}
	}
	if err := s.Settings.Validate(); err != nil {
		if bad, ok := errors.AsType[*gather.FieldError](err); ok {
			return doc.Fail("settings."+bad.Field, "%s", bad.Problem)
		}
		return err
	}
	if err := s.checkPolicies(doc); err != nil {
		return err
	}
	return s.checkItems(doc)
}

// checkPolicies rejects settings of policies not in use.
func (s *Spec) checkPolicies(doc *strictyaml.Document) error {
	if doc.Given("misfire_limit") && s.Misfire != MisfireAll {
		return doc.Fail("misfire_limit", "it goes with misfire: all")
	}
	if s.Window.NotBefore != nil && s.Window.DoneBy != nil && *s.Window.NotBefore == *s.Window.DoneBy {
		return doc.Fail("not_before", "it is the same time as done_by, so that nothing could ever start")
	}
	if doc.Given("on_late") && s.Window.DoneBy == nil {
		return doc.Fail("on_late", "it goes with done_by")
	}
	if s.Settings.DoneBy != nil {
		return doc.Fail("settings.done_by", "done_by is the schedule's own: leave it out of settings")
	}
	return nil
}

func problemOf(err error) string {
	if bad, ok := errors.AsType[*gather.FieldError](err); ok {
		return bad.Problem
	}
	return err.Error()
}

func (s *Spec) compile() (field string, err error) {
	if s.clock, err = openZone(s.Zone); err != nil {
		return "zone", err
	}
	switch {
	case s.Cron != "" && s.Every != 0:
		return "every", errors.New("give one of cron and every")
	case s.Cron == "" && s.Every == 0:
		return "cron", errors.New("give one of cron, like \"30 2 * * *\", and every, like 15m")
	case s.Every != 0:
		s.rule = interval(s.Every)
		return "every", checkEvery(time.Duration(s.Every))
	}
	e, every, err := parseCron(s.Cron)
	switch {
	case err != nil:
		return "cron", err
	case every != 0:
		s.Cron, s.Every, s.rule = "", workqueue.Duration(every), interval(every)
	case e.allHours:
		s.rule = byElapsed{e, s.clock}
	default:
		s.rule = byWall{e, s.clock}
	}
	return "", nil
}

// checkItems also tries the variables: whether they exist does not depend on the due time.
func (s *Spec) checkItems(doc *strictyaml.Document) error {
	sources := []bool{s.Items.File != "", s.Items.URL != "", s.Items.SQL != nil}
	if len(slices.DeleteFunc(sources, func(given bool) bool { return !given })) != 1 {
		return doc.Fail("items", "give one of file, url and sql: where the items come from")
	}
	if q := s.Items.SQL; q != nil {
		switch {
		case q.Source == "":
			return doc.Fail("items.sql.source", "name the source of the operator's connections to ask")
		case q.Query == "":
			return doc.Fail("items.sql.query", "give the query whose rows are the items")
		case s.Items.Format != "":
			return doc.Fail("items.format", "rows have no format; leave it out with sql")
		}
	}
	sample := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	resolved, err := s.Resolve(sample)
	if bad, ok := errors.AsType[*VariableError](err); ok {
		return doc.Fail(bad.Field, "%s", bad.Problem)
	}
	if err != nil {
		return err
	}
	if text := resolved.Items.URL; text != "" {
		if err := checkURL(s.Items.URL, text); err != nil {
			return doc.Fail("items.url", "%v", err)
		}
	}
	return nil
}

func checkURL(template, text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("want an address like https://crm.example.com/customers?as-of={due.date}")
	}
	if u.User != nil {
		return errors.New("no user or password in it: secrets belong in the operator's connections")
	}
	origin, _, _ := strings.Cut(strings.SplitN(template, "://", 2)[1], "/")
	if strings.ContainsAny(origin, "{}") {
		return fmt.Errorf("the host %.60q has a variable; it must be written out", origin)
	}
	return nil
}
